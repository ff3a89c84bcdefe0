"""What resources a pod was given, and when it is given others (in-place resize, KEP-1287 and KEP-5419).

A pod's spec says what it wants. What it *has* is its allocation: what it was admitted with, and every change that was
granted since. The pod that everything else works with is the pod as allocated.

    model.py       an allocation, read from a pod and put into one, and its form in files
    store.py       the allocations of all pods, in a file that survives the agent
    decisions.py   which resize is asked about first, and what the answer means
    conditions.py  what users see of a resize: PodResizePending and PodResizeInProgress
    messages.py    the texts of its events
    metrics.py    what is counted of resizes
    manager.py     one resize after the other: asked about, granted, deferred or refused

A pod arrives and is admitted: its allocation is stored. Its spec changes: the change waits, and admission is asked
whether the pod with its new wishes fits beside all others as allocated. If it does, the new allocation is stored, and
the pod's worker makes the runtime follow (`trikubelet.runtime`). If not, it waits until room appears.

Besides, which CPUs, which memory of NUMA nodes and which other resources containers have for themselves (the kubelet's
`cm/cpumanager`, `memorymanager`, `topologymanager`). All of that is pure, on sets that are integers:

    demands.py     which containers and pods have something of their own, and how much
    cpus/          the static CPU policy
    memory/        the static memory policy
    topology/      NUMA nodes that all resources can agree on; admits a pod as a whole or not at all

managers.py holds these values for a node and keeps their files, manager_metrics.py counts.
"""
