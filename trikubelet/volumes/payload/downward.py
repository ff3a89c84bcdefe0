"""A pod's own fields as files. Pure (kubelet: `downwardapi.CollectData`).

Files may show less than variables: what is known only when a container starts is not there yet. On the other hand they
follow the pod: labels and annotations change while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import qualified_name
from trikubelet.container.downward import Addresses, amount_text, field_value
from trikubelet.container.errors import ContainerConfigError
from trikubelet.volumes.payload.files import PayloadError, PayloadFile, mode_of_files
from trikubelet.volumes.payload.names import clean_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.api import DownwardAPIVolumeFile, Pod, Quantity, ResourceFieldSelector
    from trikubelet.volumes.payload.files import Payload

_FIELDS: Final = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)


def downward_payload(
    items: Iterable[DownwardAPIVolumeFile],
    pod: Pod,
    *,
    default_mode: int | None,
    allocatable: Mapping[str, Quantity],
) -> Payload:
    """`allocatable`: what the node can give to pods, the limit of containers without one. Raises PayloadError."""
    mode = mode_of_files(default_mode)
    payload: Payload = {}
    problems = []
    for item in items:
        try:
            text = _text(item, pod, allocatable)
            payload[clean_path(item.path)] = PayloadFile(text.encode(), mode if item.mode is None else item.mode)
        except (ContainerConfigError, PayloadError) as error:
            problems.append(str(error))
    if problems:
        raise PayloadError.of(problems)
    return payload


def _text(item: DownwardAPIVolumeFile, pod: Pod, allocatable: Mapping[str, Quantity]) -> str:
    if item.field_ref is not None:
        return _field(pod, item.field_ref.field_path)
    if item.resource_field_ref is not None:
        return _amount(item.resource_field_ref, pod, allocatable)
    return ""


def _field(pod: Pod, path: str) -> str:
    field, bracket, rest = path.partition("['")
    if field and bracket and rest.endswith("']"):
        if field not in ("metadata.annotations", "metadata.labels"):
            raise PayloadError(f'fieldPath "{field}" does not support subscript')
        key = rest.removesuffix("']")
        if wrong := qualified_name(key.lower() if field == "metadata.annotations" else key):
            raise PayloadError(f"invalid key subscript in {path}: {';'.join(wrong)}")
    elif path not in _FIELDS:
        raise PayloadError(f"unsupported fieldPath: {path}")
    return field_value(pod, path, Addresses())


def _amount(selector: ResourceFieldSelector, pod: Pod, allocatable: Mapping[str, Quantity]) -> str:
    """Unlike in variables, a container has to be named, and no limit of the pod as a whole counts."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.name == selector.container_name:
            return amount_text(selector, container, allocatable)
    raise PayloadError(f"container {selector.container_name} not found")
