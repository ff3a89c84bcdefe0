"""Whether a pod may run on this node.

types.py              the question and its answers
admit.py              all that is asked, in its order
handlers.py           questions about the pod alone: sysctls, AppArmor, pressure, shutdown
declared_features.py  what a node says it can do, and which pods need it
sysctls.py            the kernel settings that pods may ask for
predicates.py         does it fit: resources and ports (resources.py), node affinity, taints
preemption.py         which pods have to go for a critical one

A pod is asked about when it arrives, before it has a worker. The answer is made of values only: the pod, the pods that
are here already, and the node. What has to be done about the answer (ending other pods, asking the API server for the
node, telling it of a refusal) is the sync loop's.
"""
