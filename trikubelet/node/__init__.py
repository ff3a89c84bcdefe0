"""The node: its object in the API server, what it has, what pods use of it, and what it is short of.

The story of its status: `observer.py` looks at the machine and the runtime, `capacity.py`, `addresses.py`, `labels.py`
and `conditions.py` say what follows, `status.py` makes a status of it, purely, and `status_manager.py` registers the
node (`registration.py`), writes the status and renews the lease (`lease.py`).

stats/ eviction/ oom/    what is used, and what happens when it is too much
devices/ podresources/   what plugins give to pods, and the API that lists it for monitors
shutdown/                when the machine goes down
"""
