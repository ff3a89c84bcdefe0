"""Which containers have memory of NUMA nodes of their own (kubelet: `memorymanager`). Pure.

    reserved.py       what the system keeps of each NUMA node
    state.py          what NUMA nodes have, and who has what of it
    static_policy.py  containers of Guaranteed pods get theirs from one node, or from a group of nodes
    checkpoint.py     the state in a file, to the bit the kubelet's
    manager.py        policy and state, as the topology manager sees them

Sets of NUMA nodes are integers (`trikubelet.formats.cpu_list`).
"""
