"""Desired pods and the workers that drive each through its life.

The story of a pod: the sync loop files what the sources want in the manager (`manager`) and tells the pod's worker
(`workers`), which asks the pure machine what to do (`worker_registry` for all pods, `worker_state` for one) and has the
syncer do it. Every two seconds, and when a worker stops, housekeeping (`cleanup`) compares what is desired, what is
worked on and what runs, and mends the difference. `types` holds what crosses this package's border.
"""
