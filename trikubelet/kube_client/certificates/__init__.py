"""The node's certificates: asked for, kept, renewed.

A node is let into a cluster with credentials for newcomers (`bootstrap.py`). With them it asks the API server for a
client certificate in its own name (`requests.py`), which somebody approves and a signer issues. The store keeps it in
files that survive a crash at any point (`store.py`), and long before it expires a new key is made and a certificate for
it asked for, now with the old one as credentials (`rotation.py`). The certificate with which the node serves comes from
files, from the node itself, or the same way (`serving.py`).

Nothing here is imported before a cluster is joined: `cryptography` is large.
"""
