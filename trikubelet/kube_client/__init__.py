"""The client of the API server: connections, copies of what it serves, and what the node tells it.

types.py errors.py patches.py recovery.py        what every other part may know of a cluster; pure, imports no HTTP
object_getter.py volume_objects.py node_view.py  what pods, volumes and the agent ask of it, and what they are answered
                                                 without one
kubeconfig.py credentials.py certificates/       the node's identity
client.py transport.py http1.py http2.py         calls
reflector.py store.py watching.py                copies that follow the server's
informers.py objects.py pod_objects.py           which copies there are, and what is asked of them
event_sender.py                                  the node's events

Nothing else here is imported by an agent without a kubeconfig: the client is slow to import and large.
"""
