"""The credentials that an image pull tries, and what it tells the pull records of the one that it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from trikubelet.formats.values import define
from trikubelet.rpc.cri import v1
from trikubelet.runtime.images.pull_records.model import (
    ImageCredentials,
    PodCredentials,
    PullSecret,
    PullServiceAccount,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod, Secret
    from trikubelet.runtime.images.credentials.keyring import TrackedCredential


class CredentialsError(Exception):
    """Credentials could not be looked up, and a pull without them would be a wrong one."""


class Credentials(Protocol):
    """Knows credentials for registries: pull secrets', the node's own, and those of plugins."""

    async def lookup(self, repository: str, pod: Pod, secrets: Sequence[Secret]) -> Sequence[TrackedCredential]:
        """The credentials to try for a repository (`docker.io/library/busybox`), in this order; none: pull without.

        Raises CredentialsError.
        """
        ...


class NoCredentials:
    """A node that pulls without credentials."""

    async def lookup(self, repository: str, pod: Pod, secrets: Sequence[Secret]) -> Sequence[TrackedCredential]:
        return ()


@define
class PullCredentials:
    """The credentials for one image of one pod, looked up when they are first needed, and once."""

    _credentials: Credentials
    _repository: str
    _pod: Pod
    _secrets: Sequence[Secret]
    _found: Sequence[TrackedCredential] | None = attrs.field(default=None, init=False)

    async def found(self) -> Sequence[TrackedCredential]:
        """Raises CredentialsError."""
        if self._found is None:
            self._found = await self._credentials.lookup(self._repository, self._pod, self._secrets)
        return self._found

    async def of_pod(self) -> PodCredentials:
        """The pod's own credentials, without the node's. Raises CredentialsError."""
        used = [image_credentials(credential) for credential in await self.found()]
        secrets = [secret for each in used for secret in each.kubernetes_secrets]
        accounts = [account for each in used for account in each.kubernetes_service_accounts]
        return PodCredentials(tuple(secrets), accounts[0] if accounts else None)


def auth_config(credential: TrackedCredential) -> v1.AuthConfig:
    auth = credential.auth
    return v1.AuthConfig(
        username=auth.username,
        password=auth.password,
        auth=auth.auth,
        server_address=auth.server_address,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
    )


def image_credentials(credential: TrackedCredential | None) -> ImageCredentials:
    """The credentials that a pod needs to use what this credential brought."""
    source = None if credential is None else credential.source
    if credential is None or source is None:
        return ImageCredentials(node_pods_accessible=True)
    if source.kind == "secret":
        secret = PullSecret(source.uid, source.namespace, source.name, credential.hash)
        return ImageCredentials(kubernetes_secrets=(secret,))
    account = PullServiceAccount(source.uid, source.namespace, source.name)
    return ImageCredentials(kubernetes_service_accounts=(account,))
