"""What calls to a driver need from elsewhere: the driver itself, its CSIDriver object, secrets, tokens, attachments.

What is missing here may come: nothing was asked of the driver yet, so every failure is a TransientVolumeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects
from trikubelet.volumes.csi import rules
from trikubelet.volumes.csi.client import Capabilities, CSIError, NodeClient
from trikubelet.volumes.csi.drivers import Drivers
from trikubelet.volumes.csi.paths import PLUGIN
from trikubelet.volumes.errors import TransientVolumeError, VolumeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.api import CSIDriver, Pod, SecretReference
    from trikubelet.kube_client.volume_objects import Token
    from trikubelet.volumes.csi.rules import Source


@frozen
class Publication:
    """What a driver gets beside the volume itself when it is published for a pod."""

    context: Mapping[str, str] = attrs.field(repr=False)
    secrets: Mapping[str, str] = attrs.field(repr=False)
    tokens: tuple[str, ...] = attrs.field(repr=False)
    renew_at: datetime | None
    """When the first of the tokens should be replaced."""


@frozen
class CallContext:
    """`node`: this node's name."""

    node: str
    drivers: Drivers
    storage: StorageObjects
    credentials: PodCredentials

    @asynccontextmanager
    async def client(
        self, volume: str, driver: str, doing: str, *, migrated: bool = False
    ) -> AsyncIterator[NodeClient]:
        """The driver, about a volume: what it refuses within the block becomes a VolumeError."""
        try:
            async with self.drivers.client(driver, volume=volume, migrated=migrated) as client:
                yield client
        except CSIError as error:
            raise error.for_volume(volume) from None
        except TransientVolumeError as error:
            if self.drivers.get(driver) is not None:
                raise
            what = f"{PLUGIN}: {doing} failed to get CSI client: {error.problem}"
            raise TransientVolumeError(volume, what) from None

    async def capabilities(self, volume: str, client: NodeClient, doing: str) -> Capabilities:
        try:
            return await client.capabilities()
        except CSIError as error:
            raise TransientVolumeError(volume, f"{PLUGIN}: {doing} failed to get capabilities: {error}") from None

    async def driver_object(self, volume: str, driver: str) -> CSIDriver | None:
        """None when the driver has none."""
        try:
            return await self.storage.csi_driver(driver)
        except ObjectError as error:
            raise TransientVolumeError(volume, f"{PLUGIN}: failed to get CSIDriver {driver}: {error}") from error

    def known_driver_object(self, volume: str, driver: str) -> CSIDriver | None:
        """The same without waiting."""
        try:
            return self.storage.known_csi_driver(driver)
        except ObjectError as error:
            raise TransientVolumeError(volume, f"{PLUGIN}: failed to get CSIDriver {driver}: {error}") from error

    async def publish_context(self, volume: str, source: Source, driver: CSIDriver | None) -> Mapping[str, str]:
        """What attaching gave; nothing for what is not attached."""
        if source.ephemeral or not rules.requires_attach(driver):
            return {}
        name = rules.attachment_name(source.handle, source.driver, self.node)
        try:
            attachment = await self.storage.attachment(name)
        except ObjectError as error:
            what = f"{PLUGIN}: failed to get volume attachment [id={name}]: {error}"
            raise TransientVolumeError(volume, what) from error
        return attachment.status.attachment_metadata

    async def secret(self, volume: str, field: str, reference: SecretReference | None) -> dict[str, str]:
        """The values of the Secret that a `field` of the volume refers to."""
        if reference is None:
            return {}
        where = f"{reference.namespace}/{reference.name}"
        try:
            secret = await self.storage.secret(reference.namespace, reference.name)
        except ObjectError as error:
            raise TransientVolumeError(volume, f"fetching {field} {where} failed: {error}") from error
        values: dict[str, str] = {}
        for key, value in secret.data.items():
            try:
                values[key] = value.decode()
            except UnicodeDecodeError:
                # CSI's secrets are strings. The error itself holds the value, so it is not chained.
                what = f"fetching {field} {where} failed: expected text under key {key}, got bytes that are not UTF-8"
                raise VolumeError(volume, what) from None
        return values

    async def publication(
        self, volume: str, pod: Pod, source: Source, driver: CSIDriver | None, *, with_tokens: bool
    ) -> Publication:
        secrets = await self.secret(volume, "NodePublishSecretRef", source.publish_secret)
        context = dict(source.attributes)
        if rules.wants_pod_info(driver):
            context |= rules.pod_info(pod, source)
        tokens = await self._tokens(volume, pod, driver) if with_tokens else {}
        (secrets if rules.tokens_in_secrets(driver) else context).update(rules.tokens_entry(tokens))
        return Publication(
            context=context,
            secrets=secrets,
            tokens=tuple(token.token for token in tokens.values()),
            renew_at=min((token.renew_at for token in tokens.values()), default=None),
        )

    async def _tokens(self, volume: str, pod: Pod, driver: CSIDriver | None) -> dict[str, Token]:
        tokens: dict[str, Token] = {}
        for request in () if driver is None else driver.spec.token_requests:
            audiences = (request.audience,) if request.audience else ()
            try:
                tokens[request.audience] = await self.credentials.token(pod, audiences, request.expiration_seconds)
            except ObjectError as error:
                what = f"{PLUGIN}: mounter.SetUpAt failed to get service account token attributes: {error}"
                raise TransientVolumeError(volume, what) from error
        return tokens
