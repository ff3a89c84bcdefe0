"""Dynamic resource allocation: devices that pods get by ResourceClaims (kubelet: `cm/dra`, KEP-4381).

The story of a driver: its plugin registers with a socket in `plugins_registry`. We keep a connection to it
(`plugins.py`), and follow how its devices do, if it tells (`health.py`). When the last plugin of a driver has been away
for thirty seconds, the driver's devices on this node are no more to be given out: its ResourceSlices are deleted
(`slices.py`).

The story of a claim: the scheduler has allocated devices to it, and reserved it for a pod. Before the pod's sandbox is
made, the claim is read and checked (`claims.py`, pure). The pod is put down as one that uses it, on the disk
(`book.py`, pure; `checkpoint.py`), and only then each driver is asked to prepare it (`plugin.py`). What it answers,
names of CDI devices, every container of the pod gets that uses the claim. Another pod with the same claim finds it
prepared. When a pod has ended it is taken off its claims; for each of which it was the last one, the drivers are asked
to undo, and then the claim is forgotten. Whatever an agent had no time for, the next one does: a pod in the book that
is not wanted any more is taken off.

    model.py        values
    claims.py       which claims a pod uses, whether it may, and which requests of them a container gets
    book.py         which claims are prepared, and for which pods
    checkpoint.py   the book on the disk, in the kubelet's file
    plugin.py       one plugin: its two calls, its stream
    plugins.py      the plugins of all drivers, and how they register
    preparation.py  has drivers prepare claims, and undo it
    slices.py       deletes what a driver that is gone offered
    health.py       how devices do, and until when that holds
    health_watch.py what plugins tell of it, and the file
    manager.py      all of it together, and what the rest of the agent asks
    metrics.py      how long it took
"""
