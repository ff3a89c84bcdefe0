"""The events of a kubelet 1.36: reason, type, what each is about, and how its text begins.

From `pkg/kubelet/events` and every call of a recorder in `pkg/kubelet`, `pkg/volume` and `cmd/kubelet`; with the
reasons for which its admission refuses pods. Users and programs look for these words.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Fact:
    """One event."""

    reason: str
    type: str
    about: str
    """`pod`, `container`, `node`, `claim` or `volume`. What is about containers is about the pod, too, where no
    container is concerned."""
    text: str
    """Empty where it begins with a value."""


_TABLE: Final = """
AlreadyMountedVolume Warning pod The requested fsGroup is
AppArmor Warning pod
BackOff Normal container Back-off pulling image "
BackOff Warning container Back-off restarting failed container
CertificateExpired Warning pod PodCertificate expired
CertificateOverdueForRefresh Warning pod PodCertificate refresh overdue
CgroupV1 Warning node cgroup v1 detected.
CheckLimitsForResolvConf Warning node
ContainerGCFailed Warning node
Created Normal container Container created
DNSConfigForming Warning pod
DeadlineExceeded Normal pod Pod was active on the node longer than the specified deadline
Denied Warning pod
EmptyPodSharedPoolError Warning pod
ErrImageNeverPull Warning container Container image "
Evicted Warning pod
EvictionThresholdMet Warning node Attempting to reclaim
ExceededGracePeriod Warning pod Container runtime did not kill the pod within specified grace period.
Failed Warning container Error:
Failed Warning container Failed to pull image "
Failed Warning container Internal PreCreateContainer hook failed:
Failed Warning container Internal PreStartContainer hook failed:
Failed Warning pod
Failed Warning pod error making pod data directories:
FailedAttachVolume Warning pod
FailedCreatePodContainer Warning pod unable to ensure pod container exists:
FailedCreatePodSandBox Warning pod Failed to create pod sandbox:
FailedKillPod Warning pod error killing pod:
FailedMapVolume Warning pod
FailedMount Warning pod
FailedMount Warning pod Unable to attach or mount volumes:
FailedMountOnFilesystemMismatch Warning volume MountVolume failed
FailedNodeAllocatableEnforcement Warning node Failed to enforce
FailedNodeAllocatableEnforcement Warning node Failed to update Node Allocatable Limits
FailedNodeDeclaredFeaturesCheck Warning pod Pod requires node features that are not available:
FailedPodSandBoxStatus Warning pod Unable to get pod sandbox status:
FailedPostStartHook Warning container PostStartHook failed
FailedPreStopHook Warning container PreStopHook failed
FailedPrepareDynamicResources Warning pod Failed to prepare dynamic resources:
FailedSync Warning pod error determining status:
FailedToRetrieveImagePullSecret Warning pod Unable to retrieve some image pull secrets (
FailedValidation Warning pod Error validating pod
FileSystemResizeFailed Warning claim
FileSystemResizeFailed Warning pod
FileSystemResizeSuccessful Normal claim MountVolume.NodeExpandVolume succeeded for volume "
FileSystemResizeSuccessful Normal pod MountVolume.NodeExpandVolume succeeded for volume "
FreeDiskSpaceFailed Warning node Insufficient free disk space on the node's image filesystem (
HostIPsIPFamilyMismatch Warning pod Kubelet detected an IPv
ImageGCFailed Warning node
InspectFailed Warning container Failed to apply default image tag "
InspectFailed Warning container Failed to inspect image "
InvalidDiskCapacity Warning node invalid capacity 0 on image filesystem
InvalidImageID Warning node ImageID is not valid, skipping, image:
InvalidNodeInfo Warning pod Kubelet cannot get node info.
Killing Normal container
KubeletSetupFailed Warning node
LifecycleHTTPFallback Warning pod request to HTTPS lifecycle hook
MissingClusterDNS Warning node kubelet does not have ClusterDNS IP configured
MissingClusterDNS Warning pod pod: "
NetworkNotReady Warning pod network is not ready:
NodeAffinity Warning pod
NodeAllocatableEnforced Normal node Updated Node Allocatable limit across pods
NodeAllocatableEnforced Normal node Updated limits on
NodeHasDiskPressure Normal node
NodeHasInsufficientMemory Normal node
NodeHasInsufficientPID Normal node
NodeHasNoDiskPressure Normal node
NodeHasSufficientMemory Normal node
NodeHasSufficientPID Normal node
NodeName Warning pod
NodeNotReady Normal node
NodeNotSchedulable Normal node
NodePorts Warning pod
NodeReady Normal node
NodeSchedulable Normal node
NodeShutdown Warning pod Pod was rejected as the node is shutting down.
OutOf* Warning pod Node didn't have enough resource:
PodFeatureUnsupported Warning pod
PodLevelResourcesNotSupported Warning pod
PodOSNotSupported Warning pod
PodOSSelectorNodeLabelDoesNotMatch Warning pod
PossibleMemoryBackedVolumesOnDisk Warning node The tmpfs noswap option is not supported.
Preempting Warning pod Preempted in order to admit critical pod
ProbeWarning Warning container
Pulled Normal container Container image "
Pulled Normal container Successfully pulled image "
Pulling Normal container Pulling image "
Rebooted Warning node
ResizeCompleted Normal pod Pod resize completed:
ResizeDeferred Warning pod Pod resize
ResizeError Warning pod Pod resize error:
ResizeInfeasible Warning pod Pod resize
ResizeStarted Normal pod Pod resize started:
SMTAlignmentError Warning pod
SandboxChanged Normal pod Pod sandbox changed, it will be killed and re-created.
Shutdown Normal node Shutdown manager detected shutdown cancellation
Shutdown Normal node Shutdown manager detected shutdown event
Started Normal container Container started
Starting Normal node Starting kubelet.
SuccessfulAttachVolume Normal pod
SuccessfulMountVolume Normal pod MapVolume.MapPodDevice succeeded for volume "
SupplementalGroupsPolicyNotSupported Warning pod
SysctlForbidden Warning pod
SystemOOM Warning node System OOM encountered
TaintToleration Warning pod
TopologyAffinityError Warning pod
UnexpectedAdmissionError Warning pod
UnexpectedPredicateFailureType Warning pod
Unhealthy Warning container
UnknownReason Warning pod
VolumeAttachmentLimitExceeded Warning pod
VolumeConditionAbnormal Warning pod
VolumePermissionChangeInProgress Warning pod Setting volume ownership for
VolumeResizeFailed Warning claim
VolumeResizeFailed Warning pod
VolumeResizeSuccessful Normal claim
"""

FACTS: Final = tuple(Fact(*[*line.split(" ", 3), ""][:4]) for line in _TABLE.strip().splitlines())
