"""Desired pods, and the life of each of them on this node.

The story of a pod: the sync loop (`sync_loop`) files what the sources want in the pod manager (`manager`), asks
admission (`admitting`), and hands the pod to `workers`. There the pure machine takes the request (`registry` for all
pods, `machine` for one, on the values of `phases`), and the pod's life (`life`) does what the machine says, by way of
the syncer (`syncer`): sync, terminate, clean up. All that runs for the pod runs in the life's nursery.

Every two seconds, and when a life is over, housekeeping compares what is desired, what lives and what runs (`cleanup`,
pure), and mends the difference (`housekeeping`). `mirrors` shows static pods to the API server. `types` holds what
travels between all of these.
"""
