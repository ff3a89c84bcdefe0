"""The metrics of a kubelet 1.36: names, types, labels and buckets, as its source registers them.

From `pkg/kubelet/metrics`, `pkg/kubelet/server/metrics`, `pkg/kubelet/metrics/collectors`, `pkg/kubelet/prober`,
`pkg/kubelet/images`, `pkg/kubelet/certificate`, `pkg/kubelet/volumemanager/metrics`, `pkg/kubelet/pluginmanager`,
`pkg/credentialprovider/plugin`, `pkg/volume/util`, and the metrics of component-base that every component has.
"""

from __future__ import annotations

from typing import Final

import attrs

BOUNDS: Final[dict[str, tuple[float, ...]]] = {
    "default": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    "containers": (1, 2, 4, 8, 16),
    "runtime": tuple(0.005 * 2.5**power for power in range(14)),
    "sync": (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60),
    "pull": (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
    "start": (
        *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900),
        *(1200, 1800, 2700, 3600),
    ),
    "claims": (
        *(0.1, 0.1534127404634391, 0.23535468936502524, 0.36106407876409946, 0.5539182980610752, 0.849781240983936),
        *(1.303672689737678, 1.9999999999999993, 3.0682548092687805, 4.7070937873005025, 7.221281575281985),
        *(11.078365961221499, 16.995624819678714, 26.07345379475354, 39.99999999999997),
    ),
    "resize": (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000),
    "storage": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600),
    "rest": (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
    "size": (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216),
    "admission": tuple(0.05 * 2**power for power in range(15)),
    "rotation": (60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000),
}
"""Upper bounds of buckets, by the word for them below; `other` are those of metrics that only the kubelet has."""


@attrs.frozen
class Fact:
    """A family of metrics."""

    name: str
    kind: str
    labels: frozenset[str]
    bounds: str
    """A key of `BOUNDS`; empty for what is no histogram."""


_TABLE: Final = """
csi_operations_seconds histogram driver_name,method_name,grpc_status_code,migrated storage
dra_grpc_operations_duration_seconds histogram driver_name,method_name,grpc_status_code claims
dra_operations_duration_seconds histogram operation_name,is_error claims
dra_resource_claims_in_use gauge driver_name
force_cleaned_failed_volume_operation_errors_total counter -
force_cleaned_failed_volume_operations_total counter -
kubelet_active_pods gauge static
kubelet_admission_rejections_total counter reason
kubelet_certificate_manager_client_expiration_renew_errors counter -
kubelet_certificate_manager_client_ttl_seconds gauge -
kubelet_certificate_manager_server_rotation_seconds histogram - rotation
kubelet_certificate_manager_server_ttl_seconds gauge -
kubelet_cgroup_manager_duration_seconds histogram operation_type default
kubelet_cgroup_version gauge -
kubelet_container_aligned_compute_resources_count counter scope,boundary
kubelet_container_aligned_compute_resources_failure_count counter scope,boundary
kubelet_container_log_filesystem_used_bytes gauge uid,namespace,pod,container
kubelet_container_requested_resizes_total counter resource,requirement,operation
kubelet_containers_per_pod_count histogram - containers
kubelet_cpu_manager_allocation_per_numa gauge numa_node
kubelet_cpu_manager_exclusive_cpu_allocation_count gauge -
kubelet_cpu_manager_pinning_errors_total counter -
kubelet_cpu_manager_pinning_requests_total counter -
kubelet_cpu_manager_shared_pool_size_millicores gauge -
kubelet_cri_losing_support gauge version
kubelet_credential_provider_config_info gauge hash
kubelet_credential_provider_plugin_duration histogram plugin_name default
kubelet_credential_provider_plugin_errors_total counter plugin_name
kubelet_desired_pods gauge static
kubelet_device_plugin_alloc_duration_seconds histogram resource_name default
kubelet_device_plugin_registration_total counter resource_name
kubelet_evented_pleg_connection_error_count counter -
kubelet_evented_pleg_connection_latency_seconds histogram - default
kubelet_evented_pleg_connection_success_count counter -
kubelet_eviction_stats_age_seconds histogram eviction_signal default
kubelet_evictions counter eviction_signal
kubelet_first_network_pod_start_sli_duration_seconds gauge -
kubelet_graceful_shutdown_end_time_seconds gauge -
kubelet_graceful_shutdown_start_time_seconds gauge -
kubelet_http_inflight_requests gauge method,path,server_type,long_running
kubelet_http_requests_duration_seconds histogram method,path,server_type,long_running default
kubelet_http_requests_total counter method,path,server_type,long_running
kubelet_image_garbage_collected_total counter reason
kubelet_image_manager_ensure_image_requests_total counter pull_policy,present_locally,pull_required
kubelet_image_pull_duration_seconds histogram image_size_in_bytes pull
kubelet_image_volume_mounted_errors_total counter -
kubelet_image_volume_mounted_succeed_total counter -
kubelet_image_volume_requested_total counter -
kubelet_imagemanager_image_mustpull_checks_total counter result
kubelet_imagemanager_inmemory_pulledrecords_usage_percent gauge -
kubelet_imagemanager_inmemory_pullintents_usage_percent gauge -
kubelet_imagemanager_ondisk_pulledrecords gauge -
kubelet_imagemanager_ondisk_pullintents gauge -
kubelet_lifecycle_handler_http_fallbacks_total counter -
kubelet_managed_ephemeral_containers gauge -
kubelet_memory_manager_pinning_errors_total counter -
kubelet_memory_manager_pinning_requests_total counter -
kubelet_memory_qos_node_memory_low_bytes gauge -
kubelet_memory_qos_node_memory_min_bytes gauge -
kubelet_metrics_provider gauge provider
kubelet_mirror_pods gauge -
kubelet_node_name gauge node
kubelet_node_startup_duration_seconds gauge -
kubelet_node_startup_post_registration_duration_seconds gauge -
kubelet_node_startup_pre_kubelet_duration_seconds gauge -
kubelet_node_startup_pre_registration_duration_seconds gauge -
kubelet_node_startup_registration_duration_seconds gauge -
kubelet_orphan_pod_cleaned_volumes gauge -
kubelet_orphan_pod_cleaned_volumes_errors gauge -
kubelet_orphaned_runtime_pods_total counter -
kubelet_pleg_discard_events counter -
kubelet_pleg_last_seen_seconds gauge -
kubelet_pleg_pod_relist_duration_seconds histogram - default
kubelet_pleg_relist_duration_seconds histogram - default
kubelet_pleg_relist_interval_seconds histogram - default
kubelet_pod_deferred_accepted_resizes_total counter retry_trigger
kubelet_pod_in_progress_resizes gauge -
kubelet_pod_infeasible_resizes_total counter reason_detail
kubelet_pod_pending_resizes gauge reason
kubelet_pod_resize_duration_milliseconds histogram success resize
kubelet_pod_resources_endpoint_errors_get counter server_api_version
kubelet_pod_resources_endpoint_errors_get_allocatable counter server_api_version
kubelet_pod_resources_endpoint_errors_list counter server_api_version
kubelet_pod_resources_endpoint_requests_get counter server_api_version
kubelet_pod_resources_endpoint_requests_get_allocatable counter server_api_version
kubelet_pod_resources_endpoint_requests_list counter server_api_version
kubelet_pod_resources_endpoint_requests_total counter server_api_version
kubelet_pod_start_duration_seconds histogram - start
kubelet_pod_start_sli_duration_seconds histogram - start
kubelet_pod_start_total_duration_seconds histogram - start
kubelet_pod_status_sync_duration_seconds histogram - sync
kubelet_pod_watch_events_dropped_total counter -
kubelet_pod_worker_duration_seconds histogram operation_type default
kubelet_pod_worker_start_duration_seconds histogram - default
kubelet_podcertificate_states gauge signer_name,state
kubelet_preemptions counter preemption_signal
kubelet_restarted_pods_total counter static
kubelet_run_podsandbox_duration_seconds histogram runtime_handler default
kubelet_run_podsandbox_errors_total counter runtime_handler
kubelet_running_containers gauge container_state
kubelet_running_pods gauge -
kubelet_runtime_operations_duration_seconds histogram operation_type runtime
kubelet_runtime_operations_errors_total counter operation_type
kubelet_runtime_operations_total counter operation_type
kubelet_server_expiration_renew_errors counter -
kubelet_sleep_action_terminated_early_total counter -
kubelet_started_containers_errors_total counter container_type,code
kubelet_started_containers_total counter container_type
kubelet_started_host_process_containers_errors_total counter container_type,code
kubelet_started_host_process_containers_total counter container_type
kubelet_started_pods_errors_total counter -
kubelet_started_pods_total counter -
kubelet_started_user_namespaced_pods_errors_total counter -
kubelet_started_user_namespaced_pods_total counter -
kubelet_terminated_containers_total counter container_type,exit_code,reason
kubelet_topology_manager_admission_duration_ms histogram - admission
kubelet_topology_manager_admission_errors_total counter -
kubelet_topology_manager_admission_requests_total counter -
kubelet_volume_metric_collection_duration_seconds histogram metric_source default
kubelet_volume_stats_available_bytes gauge namespace,persistentvolumeclaim
kubelet_volume_stats_capacity_bytes gauge namespace,persistentvolumeclaim
kubelet_volume_stats_health_status_abnormal gauge namespace,persistentvolumeclaim
kubelet_volume_stats_inodes gauge namespace,persistentvolumeclaim
kubelet_volume_stats_inodes_free gauge namespace,persistentvolumeclaim
kubelet_volume_stats_inodes_used gauge namespace,persistentvolumeclaim
kubelet_volume_stats_used_bytes gauge namespace,persistentvolumeclaim
kubelet_websocket_streaming_requests_total counter subresource
kubelet_working_pods gauge lifecycle,config,static
kubernetes_build_info gauge major,minor,git_version,git_commit,git_tree_state,build_date,go_version,compiler,platform
kubernetes_feature_enabled gauge name,stage
kubernetes_healthcheck gauge name,type
kubernetes_healthchecks_total counter name,type,status
prober_probe_duration_seconds histogram probe_type,container,pod,namespace default
prober_probe_total counter probe_type,result,container,pod,namespace,pod_uid
plugin_manager_total_plugins gauge socket_path,state
process_cpu_seconds_total counter -
process_max_fds gauge -
process_open_fds gauge -
process_resident_memory_bytes gauge -
process_start_time_seconds gauge -
process_virtual_memory_bytes gauge -
reconstruct_volume_operations_errors_total counter -
reconstruct_volume_operations_total counter -
resource_manager_allocation_errors_total counter resource_name,source
resource_manager_allocations_total counter resource_name,source
resource_manager_container_assignments counter resource_name,assignment_type
rest_client_rate_limiter_duration_seconds histogram verb,host rest
rest_client_request_duration_seconds histogram verb,host rest
rest_client_request_size_bytes histogram verb,host size
rest_client_requests_total counter code,method,host
rest_client_response_size_bytes histogram verb,host size
storage_operation_duration_seconds histogram volume_plugin,operation_name,status,migrated storage
storage_operation_errors_total counter volume_plugin,operation_name
storage_operation_status_count counter volume_plugin,operation_name,status
volume_manager_selinux_container_errors_total gauge access_mode
volume_manager_selinux_container_warnings_total gauge access_mode
volume_manager_selinux_pod_context_mismatch_errors_total gauge access_mode
volume_manager_selinux_pod_context_mismatch_warnings_total gauge access_mode
volume_manager_selinux_volume_context_mismatch_errors_total gauge volume_plugin,access_mode
volume_manager_selinux_volume_context_mismatch_warnings_total gauge volume_plugin,access_mode
volume_manager_selinux_volumes_admitted_total gauge volume_plugin,access_mode
volume_manager_total_volumes gauge plugin_name,state
volume_operation_total_seconds histogram plugin_name,operation_name storage
"""


def _fact(line: str) -> Fact:
    name, kind, labels, *bounds = line.split()
    return Fact(name, kind, frozenset(() if labels == "-" else labels.split(",")), bounds[0] if bounds else "")


FACTS: Final = {fact.name: fact for fact in map(_fact, _TABLE.strip().splitlines())}
