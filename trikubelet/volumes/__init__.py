"""Volumes of pods: what is on the node for a pod before its containers start, and gone after they ended.

The story of a volume is told in `manager`, which owns it from a pod's first wish to the removal of the pod's folder.
What a kind of volume does lies in `kinds` and `csi`; what is written into volumes that show objects of the API server,
in `payload`. The rest of the agent knows `interface.PodVolumes`, and nothing else of this package.
"""
