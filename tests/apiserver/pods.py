"""What is particular to pods: defaults, statuses, and a deletion in two steps.

Facts from `registry/core/pod/strategy.go` and `apis/core/validation`. A pod's deletion first says until when, and the
agent of its node ends it with a second one, without grace. A pod without node, or with a terminal phase, needs no
agent for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.apiserver.documents import Document, clone, dig, items
from tests.apiserver.errors import Cause
from tests.apiserver.strategies import Strategy, is_ip
from trikubelet.api import DecodeError, pod_from_dict, set_pod_defaults, to_dict, validate_pod
from trikubelet.api.qos import compute_qos_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apiserver.users import User

MIRROR: Final = "kubernetes.io/config.mirror"
PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_FIRST_GENERATION: Final = 1
_CONDITION_STATUSES: Final = ("True", "False", "Unknown")


class PodStrategy(Strategy):
    """See the module."""

    deletes_gracefully = True
    returns_deleted = True

    def prepare_create(self, new: Document, user: User) -> None:
        new["status"] = {}
        _admit(new)
        try:
            pod = set_pod_defaults(pod_from_dict(new))
        except DecodeError:
            return  # told by validate_create
        new["spec"] = {**new.get("spec", {}), **to_dict(pod.spec)}
        new["metadata"]["generation"] = _FIRST_GENERATION
        new["status"] = {"phase": "Pending", "qosClass": compute_qos_class(pod)}

    def validate_create(self, new: Document) -> Sequence[Cause]:
        try:
            problems = validate_pod(pod_from_dict(new))
        except DecodeError as error:
            problems = list(error.problems)
        return [Cause(problem.path, problem.message) for problem in problems]

    def prepare_update(self, new: Document, old: Document) -> None:
        super().prepare_update(new, old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_update(self, new: Document, old: Document) -> Sequence[Cause]:
        """Of the spec only images, the active deadline, the grace period of -1, and more tolerations may change."""
        if _unchangeable(new) == _unchangeable(old):
            return ()
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing"
            " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        return [Cause("spec", why, "FieldValueForbidden")]

    def prepare_status(self, new: Document, old: Document) -> None:
        super().prepare_status(new, old)
        for field in ("ownerReferences", "deletionTimestamp"):
            if field in old["metadata"]:
                new["metadata"][field] = clone(old["metadata"][field])
            else:
                new["metadata"].pop(field, None)
        status = new.setdefault("status", {})
        before = old.get("status") or {}
        if not status.get("qosClass") and before.get("qosClass"):
            status["qosClass"] = before["qosClass"]
        _keep_observed_generations(status, before)

    def prepare_ephemeral_containers(self, new: Document, old: Document) -> None:
        """Nothing else changes."""
        wanted = items(new, "spec", "ephemeralContainers")
        super().prepare_ephemeral_containers(new, old)
        new["metadata"] = clone(old["metadata"])
        new["spec"]["ephemeralContainers"] = wanted
        try:
            pod = set_pod_defaults(pod_from_dict(new))
        except DecodeError:
            return  # told by validate_ephemeral_containers
        new["spec"]["ephemeralContainers"] = [to_dict(container) for container in pod.spec.ephemeral_containers]
        if new["spec"] != old["spec"]:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_ephemeral_containers(self, new: Document, old: Document) -> Sequence[Cause]:
        """They come, and stay as they are."""
        known = {one.get("name"): one for one in items(new, "spec", "ephemeralContainers")}
        for before in items(old, "spec", "ephemeralContainers"):
            if known.get(before["name"]) != before:
                why = "Forbidden: existing ephemeral containers may not be changed or removed"
                return [Cause("spec.ephemeralContainers", why, "FieldValueForbidden")]
        return self.validate_create(new)

    def prepare_resize(self, new: Document, old: Document) -> None:
        """Nothing but resources and resize policies changes."""
        wanted = clone(new["spec"])
        super().prepare_resize(new, old)
        new["metadata"] = clone(old["metadata"])
        for field in ("containers", "initContainers"):
            by_name = {one.get("name"): one for one in items(wanted, field)}
            for container in items(new, "spec", field):
                _take(container, by_name.get(container["name"], container), "resources", "resizePolicy")
        _take(new["spec"], wanted, "resources")
        if new["spec"] != old["spec"]:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_resize(self, new: Document, old: Document) -> Sequence[Cause]:
        """Of `ValidatePodResize` what does not follow from the pod alone."""
        causes = list(self.validate_create(new))
        if not causes and compute_qos_class(pod_from_dict(new)) != dig(old, "status", "qosClass"):
            why = "Invalid value: Pod QOS Class may not change as a result of resizing"
            causes.append(Cause("spec", why))
        if MIRROR in (dig(old, "metadata", "annotations") or {}):
            causes.append(Cause("", "Forbidden: static pods cannot be resized", "FieldValueForbidden"))
        before = [*items(old, "spec", "initContainers"), *items(old, "spec", "containers"), old["spec"]]
        after = [*items(new, "spec", "initContainers"), *items(new, "spec", "containers"), new["spec"]]
        if [_not_resizable(one) for one in before] != [_not_resizable(one) for one in after]:
            causes.append(Cause("spec", "Forbidden: only cpu and memory resources are mutable", "FieldValueForbidden"))
        for kind in ("limits", "requests"):
            pairs = zip(before, after, strict=True)  # none comes or goes
            if any(_resizable(old, kind).keys() - _resizable(new, kind).keys() for old, new in pairs):
                causes.append(Cause("spec", f"Forbidden: resource {kind} cannot be removed", "FieldValueForbidden"))
        return causes

    def validate_status(self, new: Document, old: Document) -> Sequence[Cause]:
        status, before = new["status"], old.get("status") or {}
        causes = _wrong_conditions(status) + _wrong_ips(status)
        if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
            causes.append(Cause("status.qosClass", f'Invalid value: "{status["qosClass"]}": field is immutable'))
        for field, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            causes += _unended(field, status, before, items(new, "spec", containers), new["spec"])
        return causes

    def grace_period(self, document: Document, requested: int | None) -> int:
        if not dig(document, "spec", "nodeName") or dig(document, "status", "phase") in ("Failed", "Succeeded"):
            return 0
        period = requested if requested is not None else dig(document, "spec", "terminationGracePeriodSeconds") or 0
        return 1 if period < 0 else int(period)


def _take(target: Document, source: Document, *fields: str) -> None:
    for field in fields:
        if field in source:
            target[field] = clone(source[field])
        else:
            target.pop(field, None)


def _resizable(of: Document, kind: str) -> Document:
    amounts = dig(of, "resources", kind) or {}
    return {name: amount for name, amount in amounts.items() if name in ("cpu", "memory")}


def _not_resizable(of: Document) -> list[Document]:
    listed = (dig(of, "resources", kind) or {} for kind in ("limits", "requests"))
    return [{name: amount for name, amount in one.items() if name not in ("cpu", "memory")} for one in listed]


def _admit(new: Document) -> None:
    """What admission plugins do to a new pod: a service account, a priority, tolerations for a lost node."""
    spec = new.setdefault("spec", {})
    if MIRROR not in (dig(new, "metadata", "annotations") or {}) and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = "default"
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec["priority"] = PRIORITIES.get(spec.get("priorityClassName", ""), spec.get("priority", 0))
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for state in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{state}"
        if not any(t.get("effect", "NoExecute") == "NoExecute" and t.get("key") in (key, None) for t in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _unchangeable(pod: Document) -> Document:
    spec = clone(pod.get("spec") or {})
    for field in ("activeDeadlineSeconds", "tolerations", "ephemeralContainers", "nodeName"):
        spec.pop(field, None)
    for container in [*items(spec, "containers"), *items(spec, "initContainers")]:
        container.pop("image", None)
    return spec  # type: ignore[no-any-return]


def _keep_observed_generations(status: Document, before: Document) -> None:
    """A client that does not know the field must not clear it."""
    if not status.get("observedGeneration") and before.get("observedGeneration"):
        status["observedGeneration"] = before["observedGeneration"]
    old = {condition.get("type"): condition.get("observedGeneration") for condition in items(before, "conditions")}
    for condition in items(status, "conditions"):
        kept = old.get(condition.get("type"))
        if kept and not condition.get("observedGeneration"):
            condition["observedGeneration"] = kept


def _wrong_conditions(status: Document) -> list[Cause]:
    return [
        Cause(
            f"status.conditions[{place}].status",
            f'Unsupported value: "{condition.get("status")}"',
            "FieldValueNotSupported",
        )
        for place, condition in enumerate(items(status, "conditions"))
        if condition.get("status") not in _CONDITION_STATUSES
    ]


def _wrong_ips(status: Document) -> list[Cause]:
    causes = []
    for single, several in (("podIP", "podIPs"), ("hostIP", "hostIPs")):
        ips = [entry.get("ip") for entry in items(status, several)]
        path = f"status.{several}"
        causes += [
            Cause(
                f"{path}[{place}]",
                f'Invalid value: "{ip}": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
            )
            for place, ip in enumerate(ips)
            if not is_ip(str(ip))
        ]
        if single == "hostIP" and ips and status.get(single) != ips[0]:
            causes.append(Cause(f"{path}[0].ip", f'Invalid value: "{ips[0]}": must be equal to `{single}`'))
        if len(ips) > 1 and (len(ips) > 2 or len({":" in str(ip) for ip in ips}) == 1):
            causes.append(Cause(path, f"Invalid value: {ips}: may specify no more than one IP for each IP family"))
    return causes


def _unended(field: str, status: Document, before: Document, containers: list[Document], spec: Document) -> list[Cause]:
    """A container that has ended for good cannot run again. Those with rules of their own are believed."""
    everything = [*items(spec, "containers"), *items(spec, "initContainers")]
    if any(rule.get("action") == "RestartAllContainers" for c in everything for rule in items(c, "restartPolicyRules")):
        return []
    policies = {container.get("name"): container for container in containers}
    now = {entry.get("name"): entry for entry in items(status, field)}
    causes = []
    for place, old in enumerate(items(before, field)):
        ended = dig(old, "state", "terminated")
        new = now.get(old.get("name"))
        if ended is None or new is None or dig(new, "state", "terminated") is not None:
            continue
        container = policies.get(old.get("name")) or {}
        if not container.get("restartPolicyRules") and not _restarts(container, spec, ended):
            why = "Forbidden: may not be transitioned to non-terminated state"
            causes.append(Cause(f"status.{field}[{place}].state", why, "FieldValueForbidden"))
    return causes


def _restarts(container: Document, spec: Document, ended: Document) -> bool:
    policy = container.get("restartPolicy") or spec.get("restartPolicy")
    return policy == "Always" or (policy == "OnFailure" and ended.get("exitCode", 0) != 0)
