"""A bridge for the pods of one runtime, made by the agent itself: no CNI plugin, no `ip`, `nft` or `iptables`.

Each pod has a veth pair: `eth0` in its network namespace, the other end a port of the bridge. The bridge has the first
address of the pods' subnet and is their gateway. What pods send elsewhere gets the machine's address (masquerade);
`hostPort` leads from the machine's addresses to a pod.

names.py          names of links and of the table, from the runtime's folder: who made what is seen by the name
addresses.py      which subnet, and which address a pod gets
ports.py          host ports: who wants which, who has it already
leases.py         what a pod has of both
rules.py          the table of nf_tables
forwarding.py     what else on the machine decides about forwarding: sysctls, others' chains that drop
host.py           makes the machine so, and takes it back
pod_link.py       the link into a pod
network.py        the life of a pod's network

All but the last three are pure, apart from reading a sysctl. Nothing is written to files. Which addresses are taken is
in the pods' attachments, which the runtime keeps with its sandboxes; the subnet is read off the bridge; what sysctls
were before is the bridge's alias. So after a crash of anything there is nothing to compare but those with the kernel,
and after a reboot nothing to clean up.
"""
