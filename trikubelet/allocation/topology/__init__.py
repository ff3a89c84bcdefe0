"""All that a container asks for comes from NUMA nodes that fit together (kubelet: `topologymanager`). Pure.

hints.py    where something could be given
policy.py   the best hint that all resources can agree on, and whether it is good enough
options.py  what the policies can be told
admit.py    asks all resource managers, agrees, and lets them give
"""
