"""Fields without which a reply is of no use, whatever runtime sent it (kubelet: cri-client `verify…Status`).

Each function names the fields that are missing, as in the CRI; an empty list means that all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trikubelet.rpc.cri import v1


def missing_in_version(reply: v1.VersionResponse) -> list[str]:
    fields = {
        "version": reply.version,
        "runtime_name": reply.runtime_name,
        "runtime_version": reply.runtime_version,
        "runtime_api_version": reply.runtime_api_version,
    }
    return [name for name, value in fields.items() if not value]


def missing_in_sandbox_status(status: v1.PodSandboxStatus) -> list[str]:
    fields = {
        "status.id": status.id,
        "status.metadata.name": status.metadata.name,
        "status.metadata.namespace": status.metadata.namespace,
        "status.metadata.uid": status.metadata.uid,
        "status.created_at": status.created_at,
    }
    return [name for name, value in fields.items() if not value]


def missing_in_container_status(status: v1.ContainerStatus) -> list[str]:
    fields = {
        "status.id": status.id,
        "status.metadata.name": status.metadata.name,
        "status.created_at": status.created_at,
        "status.image.image": status.image.image,
        "status.image_ref": status.image_ref,
    }
    return [name for name, value in fields.items() if not value]
