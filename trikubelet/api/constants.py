"""Values of string fields that the agent compares with or sets."""

from __future__ import annotations

from typing import Final

POD_PENDING: Final = "Pending"
POD_RUNNING: Final = "Running"
POD_SUCCEEDED: Final = "Succeeded"
POD_FAILED: Final = "Failed"
POD_UNKNOWN: Final = "Unknown"

RESTART_ALWAYS: Final = "Always"
RESTART_ON_FAILURE: Final = "OnFailure"
RESTART_NEVER: Final = "Never"

PULL_ALWAYS: Final = "Always"
PULL_IF_NOT_PRESENT: Final = "IfNotPresent"
PULL_NEVER: Final = "Never"

CONDITION_TRUE: Final = "True"
CONDITION_FALSE: Final = "False"
CONDITION_UNKNOWN: Final = "Unknown"

POD_SCHEDULED: Final = "PodScheduled"
POD_READY: Final = "Ready"
POD_INITIALIZED: Final = "Initialized"
POD_READY_TO_START_CONTAINERS: Final = "PodReadyToStartContainers"
CONTAINERS_READY: Final = "ContainersReady"
DISRUPTION_TARGET: Final = "DisruptionTarget"
POD_RESIZE_PENDING: Final = "PodResizePending"
POD_RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"
ALL_CONTAINERS_RESTARTING: Final = "AllContainersRestarting"

QOS_GUARANTEED: Final = "Guaranteed"
QOS_BURSTABLE: Final = "Burstable"
QOS_BEST_EFFORT: Final = "BestEffort"

DNS_CLUSTER_FIRST: Final = "ClusterFirst"
DNS_CLUSTER_FIRST_WITH_HOST_NET: Final = "ClusterFirstWithHostNet"
DNS_DEFAULT: Final = "Default"
DNS_NONE: Final = "None"

TERMINATION_MESSAGE_READ_FILE: Final = "File"
TERMINATION_MESSAGE_FALLBACK_TO_LOGS: Final = "FallbackToLogsOnError"
TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"

DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS: Final = 30
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
