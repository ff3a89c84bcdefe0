"""Which containers have CPUs of their own, and which ones (kubelet: `cpumanager`). Pure.

    topology.py       where CPUs are: sockets, NUMA nodes, uncore caches, cores
    assignment.py     which of the free CPUs are taken, packed
    distribution.py   or shared out among NUMA nodes
    options.py        what the static policy can be told
    static_policy.py  containers of Guaranteed pods get whole CPUs, the others share the rest
    state.py          who has which
    checkpoint.py     the same in a file, to the bit the kubelet's
    manager.py        policy and state, as the topology manager sees them

Sets of CPUs are integers (`trikubelet.formats.cpu_list`).
"""
