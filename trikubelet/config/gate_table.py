"""Every feature gate of Kubernetes 1.36 that a kubelet knows, with what this agent makes of it.

Names, stages, defaults, locks and dependencies are those of 1.36: of Kubernetes itself, of its API server's and
client's libraries, whose gates a kubelet takes too, and of its logs and metrics. Some features that are off there
unless asked for are on here unless switched off (`on_here`). `used` is the module in which a gate is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.config.feature_gates import Effect, FeatureGate, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALPHA: Final = Stage.ALPHA
_BETA: Final = Stage.BETA
_GA: Final = Stage.GA
_DEPRECATED: Final = Stage.DEPRECATED
_OWN: Final = Stage.OWN


def _switch(name: str, stage: Stage, default: bool, used: str, *, on_here: bool = False) -> FeatureGate:
    return FeatureGate(name, stage, default, effect=Effect.SWITCHED, used=used, on_here=on_here)


def _named(effect: Effect, names: dict[tuple[Stage, bool, bool], str]) -> Iterator[FeatureGate]:
    """`names`: by stage, default, and whether it is locked."""
    for (stage, default, locked), text in names.items():
        for name in text.split():
            yield FeatureGate(name, stage, default, locked=locked, effect=effect)


_SWITCHED: Final = (
    _switch("AllowDNSOnlyNodeCSR", _DEPRECATED, False, "agent/server.py"),
    _switch("CPUManagerPolicyAlphaOptions", _ALPHA, False, "allocation/cpus/options.py"),
    _switch("CPUManagerPolicyBetaOptions", _BETA, True, "allocation/cpus/options.py"),
    _switch("ChangeContainerStatusOnKubeletRestart", _DEPRECATED, False, "agent/agent.py"),
    _switch("ClusterTrustBundleProjection", _BETA, False, "agent/cluster.py", on_here=True),
    _switch("ComponentFlagz", _BETA, True, "node_api/node_api.py"),
    _switch("ComponentStatusz", _BETA, True, "node_api/node_api.py"),
    _switch("ContainerCheckpoint", _BETA, True, "node_api/node_api.py"),
    _switch("ContainerRestartRules", _BETA, True, "sources/gated_fields.py"),
    _switch("ContainerStopSignals", _ALPHA, False, "sources/gated_fields.py", on_here=True),
    _switch("CustomCPUCFSQuotaPeriod", _GA, True, "config/rules.py"),
    _switch("DRAExtendedResource", _BETA, True, "sources/gated_fields.py"),
    _switch("DRAWorkloadResourceClaims", _ALPHA, False, "agent/claims.py"),
    _switch("DisableCPUQuotaWithExclusiveCPUs", _DEPRECATED, True, "agent/resource_managers.py"),
    _switch("EnvFiles", _BETA, True, "sources/gated_fields.py"),
    _switch("EventedPLEG", _ALPHA, False, "agent/options.py", on_here=True),
    _switch("ExtendWebSocketsToKubelet", _BETA, True, "agent/server.py"),
    _switch("GenericPLEG", _OWN, True, "agent/options.py"),
    _switch("GracefulNodeShutdown", _BETA, True, "config/kubelet_configuration.py"),
    _switch("GracefulNodeShutdownBasedOnPodPriority", _BETA, True, "config/kubelet_configuration.py"),
    _switch("HostnameOverride", _BETA, True, "sources/gated_fields.py"),
    _switch("InPlacePodLevelResourcesVerticalScaling", _BETA, True, "agent/allocation.py"),
    _switch("InPlacePodVerticalScalingInitContainers", _BETA, True, "agent/allocation.py"),
    _switch("InPlacePodVerticalScalingExclusiveCPUs", _ALPHA, False, "agent/allocation.py"),
    _switch("InPlacePodVerticalScalingExclusiveMemory", _ALPHA, False, "agent/allocation.py"),
    _switch("KubeletCrashLoopBackOffMax", _BETA, True, "agent/options.py"),
    _switch("KubeletEnsureSecretPulledImages", _BETA, True, "agent/registry_access.py"),
    _switch("KubeletPodResourcesListUseActivePods", _DEPRECATED, True, "agent/server.py"),
    _switch("KubeletRegistrationGetOnExistsOnly", _DEPRECATED, False, "agent/node.py"),
    _switch("KubeletServiceAccountTokenForCredentialProviders", _BETA, True, "agent/registry_access.py"),
    _switch("KubeletSeparateDiskGC", _BETA, True, "config/eviction_thresholds.py"),
    _switch("LoggingAlphaOptions", _ALPHA, False, "config/logging_rules.py"),
    _switch("LoggingBetaOptions", _BETA, True, "config/logging_rules.py"),
    _switch("MemoryQoS", _ALPHA, False, "agent/resources.py"),
    _switch("NodeDeclaredFeatures", _BETA, True, "node/declared_features.py"),
    _switch("PLEGOnDemandRelist", _BETA, True, "agent/agent.py"),
    _switch("PidfdPLEG", _OWN, True, "agent/options.py"),
    _switch("PodAndContainerStatsFromCRI", _ALPHA, False, "agent/stats.py"),
    _switch("PodCertificateRequest", _BETA, False, "agent/cluster.py", on_here=True),
    _switch("PodLevelResourceManagers", _ALPHA, False, "agent/resource_managers.py"),
    _switch("PodLevelResources", _BETA, True, "agent/allocation.py"),
    _switch("PodLogsQuerySplitStreams", _ALPHA, False, "node_api/node_api.py", on_here=True),
    _switch("PodReadyToStartContainersCondition", _BETA, True, "agent/pods.py"),
    _switch("PreventStaticPodAPIReferences", _BETA, True, "agent/sources.py"),
    _switch("QOSReserved", _ALPHA, False, "agent/resources.py"),
    _switch("ReduceDefaultCrashLoopBackOffDecay", _ALPHA, False, "agent/options.py"),
    _switch("ReloadKubeletClientCAFile", _BETA, True, "agent/server.py"),
    _switch("ReloadKubeletServerCertificateFile", _BETA, True, "agent/server.py"),
    _switch("ResourceHealthStatus", _BETA, True, "agent/devices.py"),
    _switch("ResourceHealthStatusMessage", _BETA, True, "agent/claims.py"),
    _switch("RestartAllContainersOnContainerExits", _BETA, True, "sources/gated_fields.py"),
    _switch("RotateKubeletServerCertificate", _BETA, True, "config/rules.py"),
    _switch("SELinuxMount", _BETA, False, "volumes/mount_labels.py"),
    _switch("TaintTolerationComparisonOperators", _ALPHA, False, "agent/allocation.py"),
    _switch("WatchListClient", _BETA, True, "agent/cluster_access.py"),
)
"""These change what the agent does."""

_FIXED: Final = {
    (_GA, True, True): """
        AuthorizeNodeWithSelectors CPUManagerPolicyOptions CSIServiceAccountTokenSecrets DynamicResourceAllocation
        ExecProbeTimeout ImageMaximumGCAge ImageVolume InOrderInformers InPlacePodVerticalScaling
        KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources
        KubeletPodResourcesGet KubeletTracing MutableCSINodeAllocatableCount
        NodeLogQuery NodeSwap PodLifecycleSleepAction PodLifecycleSleepActionAllowZero
        PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
        RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation SELinuxChangePolicy
        SELinuxMountReadWriteOncePod ServiceAccountTokenNodeBinding SidecarContainers
        SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions UserNamespacesSupport
    """,
    (_BETA, True, False): """
        ContextualLogging
    """,
    (_ALPHA, False, False): "KubeletInUserNamespace",
    (_DEPRECATED, True, True): "DisableNodeKubeProxyVersion",
    (_DEPRECATED, False, True): "AllowOverwriteTerminationGracePeriodSeconds GitRepoVolumeDriver",
}
"""What the agent does in any case, as its kubelet does where the gate is locked."""

_EMPTY: Final = {
    (_BETA, True, False): "DRAConsumableCapacity TopologyManagerPolicyBetaOptions",
    (_ALPHA, False, False): "TopologyManagerPolicyAlphaOptions",
}
"""No kubelet looks at the first (it gives drivers what the scheduler wrote); the others are of options of which there
are none: all of the topology manager's are stable."""

_LACKING: Final = {
    (_BETA, False, False): "LocalStorageCapacityIsolationFSQuotaMonitoring",
    (_ALPHA, False, False): """
        CRIListStreaming CSIVolumeHealth ClientsAllowCBOR ClientsPreferCBOR
        DRANodeAllocatableResources ImageVolumeWithDigest
        NativeHistograms PodsAPI RuntimeClassInImageCriApi
        UserNamespacesHostNetworkSupport
    """,
}
"""What the agent has not."""

_FOREIGN: Final = {
    (_GA, True, True): """
        APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeWithSelectors
        BtreeWatchCache CRDValidationRatcheting ConsistentListFromCache CustomResourceFieldSelectors DRAAdminAccess
        DeclarativeValidation DisableAllocatorDualWrite ExternalServiceAccountTokenSigner
        JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy LogarithmicScaleDown
        MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator NFTablesProxyMode
        NodeInclusionPolicyInPodTopologySpread OrderedNamespaceDeletion PodSchedulingReadiness
        PreferSameTrafficDistribution ResilientWatchCacheInitialization RetryGenerateName
        SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI
        ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
        StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
        StructuredAuthenticationConfiguration VolumeAttributesClass WinDSR WinOverlay
    """,
    (_GA, True, False): """
        AllowServiceExternalIPs DRAPrioritizedList InformerResourceVersion MutatingAdmissionPolicy
    """,
    (_BETA, True, False): """
        APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AtomicFIFO
        AuthorizePodWebsocketUpgradeCreatePermission CRDObservedGenerationTracking
        ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC
        ConstrainedImpersonation DRADeviceBindingConditions DRADeviceTaints DRAPartitionableDevices
        DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization
        DRASchedulerFilterTimeout DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas
        DetectCacheInconsistency HPAConfigurableTolerance InOrderInformersBatchProcess ListFromCacheSnapshot
        MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
        MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
        NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PodDeletionCost
        PodTopologyLabelsAdmission PortForwardWebsockets RelaxedServiceNameValidation RemoteRequestHeaderUID
        SchedulerAsyncPreemption SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction
        SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob
        StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
        StatefulSetSemanticRevisionComparison StorageVersionHash StrictIPCIDRValidation
        StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
        TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests
        UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
        WatchCacheInitializationPostStartHook WatchList WindowsGracefulNodeShutdown
    """,
    (_BETA, False, False): """
        ClusterTrustBundle ConcurrentWatchObjectDecode CoordinatedLeaderElection DRADeviceTaintRules
        MaxUnavailableStatefulSet SchedulerAsyncAPICalls StorageVersionMigrator
    """,
    (_ALPHA, False, False): """
        APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
        CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
        CrossNamespaceVolumeDataSource DRAListTypeAttributes DRAResourcePoolStatus GangScheduling
        GenericWorkload HPAScaleToZero ManifestBasedAdmissionControlConfig MutablePVNodeAffinity
        PersistentVolumeClaimUnusedSinceTime ShardedListAndWatch StorageCapacityScoring StorageVersionAPI
        TopologyAwareWorkloadScheduling VolumeLimitScaling WindowsCPUAndMemoryAffinity
        WorkloadAwarePreemption WorkloadWithJob
    """,
    (_DEPRECATED, True, True): "AggregatedDiscoveryRemoveBetaType",
    (_DEPRECATED, False, True): "SeparateCacheWatchRPC",
    (_DEPRECATED, True, False): "ServiceCIDRStatusFieldWiping StorageNamespaceIndex",
    (_DEPRECATED, False, False): """
        AllowInsecureKubeletCertificateSigningRequests DeclarativeValidationTakeover KMSv1
        WindowsHostNetwork
    """,
}
"""Other components', other systems', or of libraries that this agent does not use."""

_DEPENDENCIES: Final = {
    "AuthorizeNodeWithSelectors": "AuthorizeWithSelectors",
    "ClusterTrustBundleProjection": "ClusterTrustBundle",
    "DRAAdminAccess": "DynamicResourceAllocation",
    "DRAConsumableCapacity": "DynamicResourceAllocation",
    "DRADeviceBindingConditions": "DynamicResourceAllocation DRAResourceClaimDeviceStatus",
    "DRADeviceTaintRules": "DRADeviceTaints",
    "DRADeviceTaints": "DynamicResourceAllocation",
    "DRAExtendedResource": "DynamicResourceAllocation",
    "DRAListTypeAttributes": "DynamicResourceAllocation",
    "DRANodeAllocatableResources": "DynamicResourceAllocation",
    "DRAPartitionableDevices": "DynamicResourceAllocation",
    "DRAPrioritizedList": "DynamicResourceAllocation",
    "DRAResourceClaimGranularStatusAuthorization": "DynamicResourceAllocation DRAResourceClaimDeviceStatus",
    "DRAResourcePoolStatus": "DynamicResourceAllocation",
    "DRASchedulerFilterTimeout": "DynamicResourceAllocation",
    "DRAWorkloadResourceClaims": "DynamicResourceAllocation GenericWorkload",
    "DeclarativeValidationBeta": "DeclarativeValidation",
    "DeclarativeValidationTakeover": "DeclarativeValidation",
    "DisableAllocatorDualWrite": "MultiCIDRServiceAllocator",
    "ExtendWebSocketsToKubelet": "NodeDeclaredFeatures",
    "GangScheduling": "GenericWorkload",
    "GracefulNodeShutdownBasedOnPodPriority": "GracefulNodeShutdown",
    "ImageVolumeWithDigest": "ImageVolume",
    "InPlacePodLevelResourcesVerticalScaling": "InPlacePodVerticalScaling PodLevelResources NodeDeclaredFeatures",
    "InPlacePodVerticalScalingExclusiveCPUs": "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingExclusiveMemory": "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingInitContainers": "InPlacePodVerticalScaling NodeDeclaredFeatures",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": "MatchLabelKeysInPodTopologySpread",
    "PodCertificateRequest": "AuthorizeNodeWithSelectors",
    "PodLevelResourceManagers": "PodLevelResources",
    "PodLifecycleSleepActionAllowZero": "PodLifecycleSleepAction",
    "ProcMountType": "UserNamespacesSupport",
    "ResourceHealthStatus": "DynamicResourceAllocation",
    "ResourceHealthStatusMessage": "ResourceHealthStatus",
    "RestartAllContainersOnContainerExits": "ContainerRestartRules NodeDeclaredFeatures",
    "ServiceAccountTokenNodeBinding": "ServiceAccountTokenNodeBindingValidation",
    "StaleControllerConsistencyDaemonSet": "AtomicFIFO",
    "StaleControllerConsistencyJob": "AtomicFIFO",
    "StaleControllerConsistencyReplicaSet": "AtomicFIFO",
    "StaleControllerConsistencyStatefulSet": "AtomicFIFO",
    "StorageVersionAPI": "APIServerIdentity",
    "StructuredAuthenticationConfigurationEgressSelector": "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationJWKSMetrics": "StructuredAuthenticationConfiguration",
    "TopologyAwareWorkloadScheduling": "GenericWorkload",
    "UnknownVersionInteroperabilityProxy": "APIServerIdentity",
    "UserNamespacesHostNetworkSupport": "UserNamespacesSupport NodeDeclaredFeatures",
    "WindowsGracefulNodeShutdown": "GracefulNodeShutdown",
    "WorkloadAwarePreemption": "GangScheduling",
    "WorkloadWithJob": "GenericWorkload",
}
"""What must be on where a gate is on."""

GATES: Final = {
    gate.name: gate
    for gate in (
        *_SWITCHED,
        *_named(Effect.FIXED, _FIXED),
        *_named(Effect.EMPTY, _EMPTY),
        *_named(Effect.LACKING, _LACKING),
        *_named(Effect.FOREIGN, _FOREIGN),
    )
}
"""All of them, by name."""

DEPENDENCIES: Final = {name: tuple(needed.split()) for name, needed in _DEPENDENCIES.items()}
