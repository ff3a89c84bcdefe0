"""HTTP/1.1 on any Trio stream, and what is spoken over it. Knows no pods.

The story of a request: `server.py` has a connection served under `limits.py`, if `places.py` has one left;
`connection.py` reads it with h11, `routing.py` finds its handler, `messages.py` is what both see, and `sending.py`
brings the answer out. After an upgrade the stream is the handler's (`raw_stream.py`).

tls_stream.py                          TLS with a certificate for each connection and the client's, unverified
negotiation.py content_coding.py       what a client takes
counted.py                             counts requests
streaming/                             exec, attach and port-forward: SPDY and WebSocket
client/                                requests of probes and hooks
"""
