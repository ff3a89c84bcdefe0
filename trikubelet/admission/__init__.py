"""Whether a pod may run on this node.

types.py    the question and its answers

A pod is asked about when it arrives, before it has a worker. The answer is made of values only: the pod, the pods that
are here already, and the node. What has to be done about the answer (ending other pods, asking the API server for the
node, telling it of a refusal) is the sync loop's.
"""
