"""The credentials of one pull: what the pod's pull secrets unlock, then the node's files, then plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.runtime.images.credentials.docker_config import parse_config, parse_legacy_config
from trikubelet.runtime.images.credentials.keyring import Keyring, Source
from trikubelet.runtime.images.credentials.secret_json import SecretJSONError
from trikubelet.runtime.images.pull_credentials import CredentialsError
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod, Secret
    from trikubelet.kube_client.object_getter import ObjectGetter
    from trikubelet.runtime.images.credentials.docker_config import DockerConfigFiles
    from trikubelet.runtime.images.credentials.keyring import TrackedCredential
    from trikubelet.runtime.images.credentials.plugins import Plugins
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("credentials")
_FORMATS: Final = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", parse_config),
    "kubernetes.io/dockercfg": (".dockercfg", parse_legacy_config),
}
"""By type of secret: the key that counts, and its parser."""


class Credentials:
    """Credentials of pods, of the node, and of plugins."""

    def __init__(self, files: DockerConfigFiles, plugins: Plugins | None = None) -> None:
        self._files = files
        self.plugins = plugins

    async def lookup(self, repository: str, pod: Pod, secrets: Sequence[Secret]) -> list[TrackedCredential]:
        """Credentials for a repository (`docker.io/library/busybox`): of the pod's secrets, the node, and plugins.

        Raises CredentialsError when a secret is broken: the pull would go wrong in a way that hides why. A broken file
        or a failing plugin is in the log only, since most images need neither. Waits for plugins, each up to a minute;
        cancelling ends the plugin that runs.
        """
        of_secrets = keyring_of(secrets)
        for location in of_secrets.invalid_locations:
            log.warning("ignored an entry of a pull secret: no registry location", pod=pod.full_name, location=location)
        found = of_secrets.lookup(repository) + self._files.keyring().lookup(repository)
        if self.plugins is not None:
            found += await self.plugins.lookup(repository, pod)
        return found


async def fetch_pull_secrets(objects: ObjectGetter, pod: Pod, recorder: EventRecorder) -> tuple[Secret, ...]:
    """The pull secrets of a pod, in its order; those that cannot be had are left out, and one event tells of them.

    Call it only when a container is to be started: steady pods need no secrets.
    """
    secrets: list[Secret] = []
    missing: list[str] = []
    for reference in pod.spec.image_pull_secrets:
        # Validation lets references without a name pass.
        if not reference.name:
            continue
        try:
            secrets.append(await objects.secret(pod.metadata.namespace, reference.name))
        except ObjectError as error:
            log.info("cannot get a pull secret", pod=pod.full_name, secret=reference.name, error=str(error))
            missing.append(reference.name)
    if missing:
        message = (
            f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
            "attempting to pull the image may not succeed."
        )
        recorder.pod_event(pod, EventType.WARNING, "FailedToRetrieveImagePullSecret", message)
    return tuple(secrets)


def keyring_of(secrets: Sequence[Secret]) -> Keyring:
    """Credentials in pull secrets; secrets of other types hold nothing. Raises CredentialsError for a broken one."""
    keyring = Keyring()
    for secret in secrets:
        key, parse = _FORMATS.get(secret.type, ("", parse_config))
        raw = secret.data.get(key, b"")
        if not raw:
            continue
        identity = secret.metadata
        try:
            logins = parse(raw)
        except SecretJSONError as error:
            raise CredentialsError(
                f"cannot read {key} of the pull secret {identity.namespace}/{identity.name}: {error}"
            ) from None
        keyring.add(logins, Source("secret", identity.uid, identity.namespace, identity.name))
    return keyring
