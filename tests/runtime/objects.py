"""Objects that a test makes up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import ConfigMap, Secret
from trikubelet.kube_client.object_getter import ObjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod


@attrs.define
class FakeObjects:
    """Answers from dictionaries, by (namespace, name); counts what it was asked."""

    secrets: dict[tuple[str, str], Secret] = attrs.field(factory=dict)
    config_maps: dict[tuple[str, str], ConfigMap] = attrs.field(factory=dict)
    handlers: dict[str, str] = attrs.field(factory=dict)
    services: dict[str, str] = attrs.field(factory=dict)
    tokens: dict[str, str] = attrs.field(factory=dict)
    """By audience."""
    asked: list[str] = attrs.field(factory=list)

    async def secret(self, namespace: str, name: str) -> Secret:
        self.asked.append(f"secret {namespace}/{name}")
        if (namespace, name) not in self.secrets:
            raise ObjectError(f'secret "{name}" not found', "not found")
        return self.secrets[namespace, name]

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        self.asked.append(f"config map {namespace}/{name}")
        if (namespace, name) not in self.config_maps:
            raise ObjectError(f'configmap "{name}" not found', "not found")
        return self.config_maps[namespace, name]

    async def runtime_handler(self, class_name: str) -> str:
        if class_name not in self.handlers:
            raise ObjectError(f'runtimeclass.node.k8s.io "{class_name}" not found', "not found")
        return self.handlers[class_name]

    async def service_variables(self, pod: Pod) -> Mapping[str, str]:
        return self.services

    async def service_account_token(self, pod: Pod, audience: str) -> str:
        if audience not in self.tokens:
            raise ObjectError(f"no token for {audience}", "unavailable")
        return self.tokens[audience]
