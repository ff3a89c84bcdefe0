"""Desired pods, and the life of each of them on this node.

The story of a pod: the sync loop takes events in (`sync_loop`). Its handler (`sync_handler`) files the sources' pods in
the pod manager (`manager`), asks admission (`admitting`), and hands each pod to `workers`. There the pure machine takes
the request (`registry` for all pods, `machine` for one, on the values of `phases`), and the pod's life (`life`) does
what the machine says, by way of the syncer (`syncer`): sync, unless nothing changed (`settled`), terminate, clean up;
each with a report of the pod's status (`reporting`). All that runs for the pod runs in the life's nursery.

Every two seconds, and when a life is over, housekeeping compares what is desired, what lives and what runs (`cleanup`,
pure), and mends the difference (`housekeeping`). `mirrors` shows static pods to the API server. `types` holds what
travels between all of these.
"""
