"""Authentication and authorization of the node's HTTP API.

The story of a request: `Guarded` (guard.py) stands before the routes. The authenticators find the user, the first that
knows decides: a client certificate that leads to the bundle in `clientCAFile` (certificates.py, client_ca.py), then a
bearer token that the API server vouches for (tokens.py), then, only where that is switched on, the anonymous user
(union.py). `attributes.py` says what the request is in the cluster's terms: a verb on a subresource of this node. The
authorizer (authorization.py) asks the API server whether the user may do that. Questions to the API server are made in
reviews.py, shared by equal requests at the same time (sharing.py), and their answers kept for a while
(expiring.py). `build.py` makes all of this of a KubeletConfiguration.

Everything fails closed: whatever goes wrong is a 401 or a 500, never a handler.
"""
