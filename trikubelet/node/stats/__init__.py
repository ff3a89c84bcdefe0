"""What node, pods and containers use: `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`.

The way of the numbers:

1. A request comes (`provider.StatsProvider`). Others at the same time, or a second later, get the same collection.
2. The runtime is asked for its lists and, for the full picture, its own statistics (`runtime_replies.py`).
   `choice.py` says which sandboxes and containers count.
3. One hop into a thread reads everything else (`measure.py`): cgroups (`cgroup_places.py` finds them,
   `cgroup_files.py` reads them), /proc (`proc_files.py`), file systems and logs (`disk.py`).
4. In the same hop `compose.py` and `storage.py` make a `model.Summary` of it: pure functions. `rates.py` turns counters
   into rates.
5. `wire.py` writes it as the kubelet's JSON. `resource_metrics.py`, `cadvisor_metrics.py` and `volume_metrics.py` make
   metric families of it, and `exposition.py` their text.

As in the kubelet the cgroups have the first word and the runtime fills what they do not tell. A source that fails
leaves the others: what it would have told is missing, and `Summary.problems` says why.

Times are nanoseconds since 1970 everywhere in here, since the counters that belong to them are nanoseconds too.
"""
