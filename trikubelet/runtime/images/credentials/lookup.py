"""The door: everything that is known for one repository and one pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.runtime.images.credentials.pull_secrets import keyring_of
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod, Secret
    from trikubelet.runtime.images.credentials.docker_config import DockerConfigFiles
    from trikubelet.runtime.images.credentials.keyring import TrackedCredential
    from trikubelet.runtime.images.credentials.plugins import Plugins

log = get_logger("credentials")


class Credentials:
    """Credentials of pods, of the node, and of plugins."""

    def __init__(self, files: DockerConfigFiles, plugins: Plugins | None = None) -> None:
        self._files = files
        self._plugins = plugins

    async def lookup(self, repository: str, pod: Pod, secrets: Sequence[Secret]) -> list[TrackedCredential]:
        """What to try for a repository (`docker.io/library/busybox`): the pod's secrets, then the node, then plugins.

        Raises CredentialsError when a secret is broken: the pull would go wrong in a way that hides why. A broken file
        or a failing plugin is in the log only, since most images need neither. Waits for plugins, each up to a minute;
        cancelling ends the plugin that runs.
        """
        of_secrets = keyring_of(secrets)
        for location in of_secrets.invalid_locations:
            log.warning("ignored an entry of a pull secret: no registry location", pod=pod.full_name, location=location)
        found = of_secrets.lookup(repository) + self._files.keyring().lookup(repository)
        if self._plugins is not None:
            found += await self._plugins.lookup(repository, pod)
        return found
