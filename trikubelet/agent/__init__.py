"""The agent: every part is made here and joined to the others. Read this first.

`run.py` is `trikubelet run`: the lock on the root folder, the embedded runtime where it is wanted, signals
(`ending.py`), the service manager. In it `agent.py` builds one agent on a runtime that is reached through a channel,
and opens the nurseries; its own text draws the tree of scopes. `options.py` has what the command line and the
configuration say, `overrides.py` the parts that a test or a simulated node replaces.

Each of the other modules joins one part, and tells what it asks of the others:

node.py cluster.py                       the node's settings and its view; what belongs to a cluster
cluster_access.py registry_access.py     the way to the API server, and to registries
sources.py volumes.py probes.py          where pods come from, what they find, how they are
desired_pods.py                          which pods are active, for parts made before the sync loop
allocation.py resources.py devices.py    what they are given: resources, cgroups, devices
disk.py eviction.py shutdown.py drain.py   when room or time runs out
plugins.py                               who takes plugins of which type
server.py view.py node_view.py           what is served, and what may be asked of the agent
metrics.py stats.py                      what there is to collect, and to measure

No other package imports this one, but for the simulation and the command line above it.
"""
