"""What would run a manifest that is no pod: for people who try what they have.

An agent runs pods. Everything else is kept by an API server and acted upon by somebody in the cluster, or is the input
of another tool. Here it says which, and how one would write a pod instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_KIND: Final = 63
_TEMPLATE: Final = "a controller of a cluster makes pods of it. To run it here, write a Pod of its"
_OF_A_CLUSTER: Final = "a cluster's API server keeps it: kubectl apply -f"
_TRAFFIC: Final = (
    "kube-proxy and controllers of a cluster lead traffic to pods by it. Here a pod is reached at its own address, or "
    "at the node's by hostPort"
)
_STORAGE: Final = "controllers of a cluster provide its storage. Here a pod can use hostPath and emptyDir volumes"
_CONTENT: Final = (
    "a cluster's API server keeps it for pods. Static pods have their values in env, and files in hostPath volumes"
)
_RIGHTS: Final = "a cluster's API server decides by it who may do what; static pods have no account there"

_BY_KIND: Final[Mapping[str, str]] = {
    "Deployment": f"{_TEMPLATE} spec.template",
    "ReplicaSet": f"{_TEMPLATE} spec.template",
    "ReplicationController": f"{_TEMPLATE} spec.template",
    "StatefulSet": f"{_TEMPLATE} spec.template, with volumes in the place of volumeClaimTemplates",
    "DaemonSet": f"{_TEMPLATE} spec.template",
    "Job": f"{_TEMPLATE} spec.template",
    "CronJob": f"{_TEMPLATE} spec.jobTemplate.spec.template, and have cron or a systemd timer save it",
    "PodTemplate": f"{_TEMPLATE} template",
    "HorizontalPodAutoscaler": "a controller of a cluster changes the number of pods by it",
    "PodDisruptionBudget": "a cluster's API server refuses evictions by it",
    "Service": _TRAFFIC,
    "Endpoints": _TRAFFIC,
    "EndpointSlice": _TRAFFIC,
    "Ingress": _TRAFFIC,
    "IngressClass": _TRAFFIC,
    "Gateway": _TRAFFIC,
    "GatewayClass": _TRAFFIC,
    "HTTPRoute": _TRAFFIC,
    "NetworkPolicy": "the network plugin of a cluster filters traffic by it",
    "ConfigMap": _CONTENT,
    "Secret": _CONTENT,
    "PersistentVolume": _STORAGE,
    "PersistentVolumeClaim": _STORAGE,
    "StorageClass": _STORAGE,
    "ServiceAccount": _RIGHTS,
    "Role": _RIGHTS,
    "RoleBinding": _RIGHTS,
    "ClusterRole": _RIGHTS,
    "ClusterRoleBinding": _RIGHTS,
    "Namespace": "a cluster's API server keeps it. A static pod may name any namespace, which need not exist",
    "CustomResourceDefinition": f"{_OF_A_CLUSTER}, and an operator there acts on its objects",
    "Node": "the agent makes the object of its own node: join a cluster with --kubeconfig",
    "List": "expected its pods as documents of their own, or kind: PodList",
    "KubeletConfiguration": "it configures an agent: give it as --config",
    "CredentialProviderConfig": "it configures an agent: give it as --image-credential-provider-config",
    "Config": "a kubeconfig: give it as --kubeconfig, to join its cluster",
}
_BY_GROUP: Final[Mapping[str, str]] = {
    "kustomize.config.k8s.io": "kustomize makes manifests of it. Save what `kubectl kustomize FOLDER` prints, as far "
    "as it is pods",
    "kustomize.toolkit.fluxcd.io": "Flux applies it in a cluster",
    "helm.toolkit.fluxcd.io": "Flux applies it in a cluster",
    "helm.cattle.io": "the Helm controller of a cluster (k3s, RKE2) applies it",
    "argoproj.io": "Argo acts on it in a cluster",
    "kubeadm.k8s.io": "kubeadm makes a cluster by it",
}
_COMPOSE: Final = (
    "this is a compose file: `docker compose up` runs it. As a pod each of its services is a container, in one "
    "network: image, command as args, environment as env, ports as hostPort"
)
_CHART: Final = (
    "this is a Helm chart: `helm install` applies it in a cluster. `helm template` prints its manifests, whose pods "
    "can run here"
)
TEMPLATE_HINT: Final = "; is this the template of a Helm chart? `helm template` prints it with its values"


def what_runs(data: Mapping[str, Any]) -> str:
    """Why a document is no pod of this agent's, who would run it, and what to do instead."""
    kind = data.get("kind")
    if not kind:
        return _without_kind(data)
    if not isinstance(kind, str) or len(kind) > _LONGEST_KIND:
        return "the agent runs pods only"
    group, _, _ = str(data.get("apiVersion", "")).rpartition("/")
    if (known := _BY_GROUP.get(group)) is not None:
        return known
    if (known := _BY_KIND.get(kind)) is not None:
        return known
    from difflib import get_close_matches  # for mistakes alone

    if close := get_close_matches(kind.lower(), ("pod", "podlist"), cutoff=0.75):
        return f"did you mean {'Pod' if close[0] == 'pod' else 'PodList'}?"
    return f"the agent runs pods only; {_OF_A_CLUSTER}" + (", and an operator there acts on it" if "." in group else "")


def _without_kind(data: Mapping[str, Any]) -> str:
    if isinstance(services := data.get("services"), dict) and all(isinstance(one, dict) for one in services.values()):
        return _COMPOSE
    if data.get("apiVersion") in ("v1", "v2") and data.get("name") and data.get("version"):
        return _CHART
    if any(name in data for name in ("resources", "bases", "patches", "configMapGenerator", "namePrefix")):
        return _BY_GROUP["kustomize.config.k8s.io"]
    if isinstance(data.get("spec"), dict) and "containers" in data["spec"]:
        return "a pod begins with apiVersion: v1 and kind: Pod"
    return "the agent runs pods only, which begin with apiVersion: v1 and kind: Pod"
