"""Plugins: programs of the node that know credentials, such as those for a cloud's own registry.

An image that one of a plugin's patterns matches makes the agent look for a kept answer: one for the image, one for its
registry, one for all. When there is none, the plugin is run. Pods that want the same image meanwhile wait for that
run and share its answer. An answer is kept as long as it says, or as the configuration says for answers that do not.

A plugin that fails costs a line in the log, and the pull goes on with what the others know.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define, frozen
from trikubelet.runtime.images.credentials.accounts import NODE, account_access
from trikubelet.runtime.images.credentials.keyring import Auth, Keyring
from trikubelet.runtime.images.credentials.locations import location_matches
from trikubelet.runtime.images.credentials.plugin_config import CACHE_BY_TOKEN
from trikubelet.runtime.images.credentials.plugin_protocol import (
    PluginError,
    PluginResponse,
    decode_response,
    encode_request,
    run_plugin,
)
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Counts, Histograms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping

    from trikubelet.api import Pod
    from trikubelet.runtime.images.credentials.accounts import AccountAccess, ServiceAccounts
    from trikubelet.runtime.images.credentials.keyring import Source, TrackedCredential
    from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider

    RunPlugin = Callable[[CredentialProvider, str, bytes], Awaitable[bytes]]

log = get_logger("credentials")

_PURGE_INTERVAL: Final = 900.0
_FOR_ALL: Final = "<global>"
"""No image and no registry is called so."""
_ECHOED_TOKEN: Final = (
    "credential provider plugin returned the service account token as the password which is not allowed "
    "when service account cache type is not set to 'Token'"
)

Logins = dict[str, Auth]


@define
class PluginMetrics:
    """Since the start of the agent, by the names of plugins."""

    durations: Histograms = attrs.field(factory=Histograms)
    """Seconds of each run, also of one that failed or was cancelled."""
    errors: Counts = attrs.field(factory=Counter)
    """Runs that failed; what a plugin answers may be wrong all the same."""


class Plugins:
    """All plugins of the node."""

    def __init__(
        self,
        providers: Iterable[CredentialProvider],
        accounts: ServiceAccounts,
        run: RunPlugin = run_plugin,
        *,
        config_hash: str = "",
    ) -> None:
        self.metrics = PluginMetrics()
        self.config_hash = config_hash
        """`PluginConfig.hash`"""
        self._plugins = [_Plugin(provider, accounts, run, self.metrics) for provider in providers]

    @property
    def kept_answers(self) -> int:
        """How many answers are in memory."""
        return sum(plugin.kept_answers for plugin in self._plugins)

    async def lookup(self, repository: str, pod: Pod) -> list[TrackedCredential]:
        """The plugins' credentials for a repository. Each takes up to a minute; cancelling ends the one that runs."""
        keyring = Keyring()
        for plugin in self._plugins:
            try:
                logins, source = await plugin.provide(repository, pod)
            except PluginError as error:
                log.warning(
                    "a plugin gave no credentials",
                    provider=plugin.name,
                    image=repository,
                    pod=pod.full_name,
                    error=str(error),
                )
            else:
                keyring.add(logins, source)
        return keyring.lookup(repository)


@frozen
class _Kept:
    logins: Logins = attrs.field(repr=False)
    expires: float


class _Plugin:
    def __init__(
        self, provider: CredentialProvider, accounts: ServiceAccounts, run: RunPlugin, metrics: PluginMetrics
    ) -> None:
        self.name = provider.name
        self._metrics = metrics
        self._provider = provider
        self._accounts = accounts
        self._run = run
        self._kept: dict[tuple[str, Hashable], _Kept] = {}
        self._purge_at = 0.0
        self._runs = _SharedRuns()

    @property
    def kept_answers(self) -> int:
        return len(self._kept)

    async def provide(self, image: str, pod: Pod) -> tuple[Mapping[str, Auth], Source | None]:
        """Credentials by location, and the account that they belong to. Raises PluginError."""
        if not any(location_matches(pattern, image) for pattern in self._provider.match_images):
            return {}, None
        tokens = self._provider.tokens
        access = NODE if tokens is None else await account_access(tokens, self._accounts, pod)
        if access is None:
            return {}, None
        logins = self._find(image, access)
        if logins is None:
            logins = await self._ask(image, access)
        return logins, access.source

    async def _ask(self, image: str, access: AccountAccess) -> Logins:
        async def run() -> PluginResponse:
            version = self._provider.api_version
            request = encode_request(version, image, access.token, access.annotations)
            try:
                return decode_response(await self._measured(image, request), version)
            except PluginError as error:
                # What a plugin says on stderr is shown, and some print their request there.
                raise PluginError(_without(access.token, error.message)) from None

        # Tokens differ by pod, so pods share a run only when the very same is asked.
        asked = (image, access.token_hash, *sorted(access.annotations.items()))
        response = await self._runs.share(asked, run)
        tokens = self._provider.tokens
        is_echo = bool(access.token) and any(auth.password == access.token for auth in response.logins.values())
        if is_echo and tokens is not None and tokens.cache_type != CACHE_BY_TOKEN:
            # Kept by account, one pod's token would be given to the account's other pods.
            raise PluginError(_ECHOED_TOKEN)
        self._keep(image, access, response)
        return response.logins

    async def _measured(self, image: str, request: bytes) -> bytes:
        begun = trio.current_time()
        try:
            return await self._run(self._provider, image, request)
        except PluginError:
            self._metrics.errors[self.name,] += 1
            raise
        finally:
            self._metrics.durations.observe((self.name,), trio.current_time() - begun)

    def _keep(self, image: str, access: AccountAccess, response: PluginResponse) -> None:
        duration = response.cache_duration
        if duration is None:
            duration = self._provider.default_cache_duration
        if duration > 0:
            key = {"Image": image, "Registry": _registry(image), "Global": _FOR_ALL}[response.cache_key_type]
            self._kept[key, access.cache_key] = _Kept(response.logins, trio.current_time() + duration)

    def _find(self, image: str, access: AccountAccess) -> Logins | None:
        now = trio.current_time()
        if now > self._purge_at:
            self._kept = {key: kept for key, kept in self._kept.items() if now <= kept.expires}
            self._purge_at = now + _PURGE_INTERVAL
        for key in (image, _registry(image), _FOR_ALL):
            kept = self._kept.get((key, access.cache_key))
            if kept is not None and now <= kept.expires:
                return kept.logins
        return None


@define
class _SharedRun:
    ended: trio.Event = attrs.field(factory=trio.Event)
    response: PluginResponse | None = None
    problem: PluginError | None = None


class _SharedRuns:
    """One run at a time for each key; further callers wait and get its answer.

    The task that asks first runs the plugin. When it is cancelled, one of those that wait runs it again.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, _SharedRun] = {}

    async def share(self, key: Hashable, ask: Callable[[], Awaitable[PluginResponse]]) -> PluginResponse:
        """Raises PluginError."""
        while (current := self._runs.get(key)) is not None:
            await current.ended.wait()
            if current.response is not None:
                return current.response
            if current.problem is not None:
                raise PluginError(current.problem.message)
        mine = self._runs[key] = _SharedRun()
        try:
            mine.response = await ask()
        except PluginError as error:
            mine.problem = error
            raise
        finally:
            del self._runs[key]
            mine.ended.set()
        return mine.response


def _without(token: str, text: str) -> str:
    return text.replace(token, "(token)") if token else text


def _registry(image: str) -> str:
    return image.partition("/")[0]
