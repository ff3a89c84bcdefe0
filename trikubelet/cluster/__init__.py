"""The agent's side of an API server: a client, copies of what it serves, and what the node tells it.

types.py errors.py      what every other part of the agent may know of a cluster; pure, imports no HTTP

Nothing here is imported by an agent without a kubeconfig except those two: the HTTP client is slow to import and large.
"""
