"""What this node knows of registries: credentials of its own, and which pods may use which of the pulled images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen
from trikubelet.runtime.images.credentials.docker_config import DockerConfigFiles
from trikubelet.runtime.images.credentials.lookup import Credentials
from trikubelet.runtime.images.pull_records.model import VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from trikubelet.agent.options import AgentOptions
    from trikubelet.clock import WallClock
    from trikubelet.runtime.images.credentials.accounts import ServiceAccounts
    from trikubelet.runtime.images.credentials.plugins import Plugins


class RegistryAccessError(Exception):
    """The programs that know credentials cannot be used as they are configured."""


@frozen
class RegistryAccess:
    """For the runtime manager."""

    credentials: Credentials
    pull_records: PullRecords | None
    """None: nobody asks with which credentials an image was pulled."""

    @classmethod
    def of_node(
        cls, options: AgentOptions, clock: WallClock, accounts: ServiceAccounts | None = None
    ) -> RegistryAccess:
        """From the node's files below the root folder. Raises RegistryAccessError.

        `accounts`: the cluster's service accounts, for programs that want their tokens.
        """
        configuration = options.configuration
        policy = VerificationPolicy(
            configuration.image_pull_credentials_verification_policy,
            configuration.preloaded_images_verification_allowlist,
        )
        records = None
        if configuration.enabled("KubeletEnsureSecretPulledImages"):
            records = PullRecords(RecordStore(options.root_dir), policy, clock)
        return cls(Credentials(DockerConfigFiles.of_node(options.root_dir), _plugins(options, accounts)), records)


def _plugins(options: AgentOptions, accounts: ServiceAccounts | None) -> Plugins | None:
    """Their code is loaded only where the flags are given."""
    config, programs = options.credential_provider_config, options.credential_provider_bin_dir
    if config is None and programs is None:
        return None
    from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts
    from trikubelet.runtime.images.credentials.plugin_config import PluginConfigError, read_plugin_config
    from trikubelet.runtime.images.credentials.plugins import Plugins

    try:
        with_tokens = options.configuration.enabled("KubeletServiceAccountTokenForCredentialProviders")
        configured = read_plugin_config(config, programs, with_tokens=with_tokens)
        return Plugins(configured.providers, accounts or NoServiceAccounts(), config_hash=configured.hash)
    except PluginConfigError as error:
        raise RegistryAccessError(str(error)) from error
