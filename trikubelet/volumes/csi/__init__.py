"""Volumes of CSI drivers: programs that bring storage to the node, and that we talk to over a socket each.

The story of a volume: a driver registers itself (`plugins`), which puts its socket into `Drivers`. `CSIKind` asks
`rules` what to say for a volume, writes down what it is about to do (`vol_data`, at the kubelet's `paths`) and has a
`NodeClient` say it: stage once for the node, publish for each pod. From what was written down, everything can be undone
after a restart of the agent. `block` is the same for pods that want the device itself.
"""
