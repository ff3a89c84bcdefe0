"""Volumes of pods: what is on the node for a pod before its containers start, and gone after they ended.

The story of a volume: the pod worker has `PodMounts.prepare` make the pod's folders and volumes below the root folder,
in the kubelet's layout (`layout`); the runtime manager asks for each volume's path and binds it into the containers;
when the pod has ended, `remove` unmounts what was mounted and removes the pod's folder, and housekeeping does the same
for folders of pods that nobody knows.

Kinds so far: `emptyDir` and `hostPath`. Others fail with an error that says so.
"""

from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.pod_mounts import PodMounts

__all__ = ["PodMounts", "VolumeError"]
