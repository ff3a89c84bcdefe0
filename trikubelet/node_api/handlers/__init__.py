"""The handlers of the node's HTTP API, one module per kind of route. `node_api.py` says which route has which.

They ask the agent through the protocols of `view.py` and keep nothing.
"""
