"""The agent: every part is made here and joined to the others. Read this first.

`run.py` is `trikubelet run`: the lock on the root folder, the embedded runtime where it is wanted, signals
(`ending.py`). In it `service.py` has one agent made on that runtime, tells the service manager, and ends it. `agent.py`
builds the agent and opens the nurseries; its own text draws the tree of scopes. `options.py` has what the command line
and the configuration say, `overrides.py` the parts that a test or a simulated node replaces.

Each of the other modules makes and connects some of the parts:

node.py cluster.py                       the node's settings and its view; what belongs to a cluster
cluster_access.py registry_access.py     access to the API server, and to registries
plugins.py                               plugins that register themselves, by type
allocation.py resources.py devices.py    admission, and what pods are given: resources, cgroups, devices
volumes.py runtime.py                    pods' volumes; the runtime manager, and the garbage on disk
sources.py pods.py                       where pods come from; pod workers, housekeeping and sync loop
eviction.py shutdown.py                  ending pods: for pressure, at the machine's shutdown, by a drain
server.py view.py node_view.py           what is served, and the agent as the node's API sees it
metrics.py stats.py                      collected metrics, and statistics

Only the simulation and the command line import this package.
"""

from trikubelet.linux.libraries import load_trio

load_trio()
