"""A network's plugins, run one after the other, as the specification's section 3 has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.embedded.network.cni.configuration import request
from trikubelet.embedded.network.cni.documents import CniDataError, parse_object, render
from trikubelet.embedded.network.cni.folder import find_plugin
from trikubelet.embedded.network.cni.plugin import PluginCall, PluginError, run_plugin
from trikubelet.embedded.network.cni.results import Result, parse_result, result_from_json, result_to_json
from trikubelet.embedded.network.cni.versions import CURRENT, OLDEST, at_least, choose_version, spoken_versions
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import define
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trikubelet.embedded.network.cni.cache import CachedAttachment
    from trikubelet.embedded.network.cni.configuration import NetworkConfiguration, PluginConfiguration

log = get_logger("network")

VERSION_WITH_GC: Final = "1.1.0"
"""And with STATUS."""
_VERSION_TIMEOUT: Final = 10.0
_CACHED_RESULTS: Final = "0.4.0"
"""From this version on, DEL is told what ADD answered."""
_GONE: Final = ("no such file or directory", "Link not found")
"""What plugins of before 1.0 say of a namespace that is not there; there is nothing left to do in it."""


@define(eq=False)
class PluginChain:
    """Runs plugins of any network. Deadlines are in Trio's time."""

    folders: tuple[Path, ...]
    _spoken: dict[tuple[object, ...], frozenset[str]] = attrs.field(factory=dict, init=False)
    """Versions by a program as it was when it was asked."""

    async def version_for(self, network: NetworkConfiguration) -> str:
        """The version that all of the network's plugins are run with. Raises NetworkError."""
        spoken = {}
        for plugin in network.plugins:
            versions = await self._versions_of(plugin.type)
            if versions is not None:
                spoken[plugin.type] = versions
        version = choose_version(network.versions, spoken, f"CNI network {network.name}")
        if version not in network.versions:
            log.debug("CNI plugins speak an older version than configured", network=network.name, version=version)
        return version

    async def add(
        self, network: NetworkConfiguration, version: str, attachment: CachedAttachment, deadline: float
    ) -> Result:
        """Raises NetworkError; the plugins before the one that failed have done their work then."""
        call = _call("ADD", attachment, attachment.namespace_path)
        result: Result | None = None
        for plugin in network.plugins:
            what = _what(network, plugin, "ADD")
            configuration = request(
                network,
                plugin,
                version,
                capability_arguments=attachment.capability_arguments,
                previous=None if result is None else result_to_json(result, version, what),
            )
            answer = await self._run(plugin, call, configuration, what, deadline)
            result = parse_result(answer, version, what)
        return result or Result()

    async def delete(
        self, network: NetworkConfiguration, attachment: CachedAttachment, namespace_path: str, deadline: float
    ) -> None:
        """Take an attachment down; an empty path says that its namespace is gone. Raises NetworkError."""
        version = await self.version_for(network)
        call = _call("DEL", attachment, namespace_path)
        previous = _previous(attachment, version)
        for plugin in reversed(network.plugins):
            what = _what(network, plugin, "DEL")
            configuration = request(
                network,
                plugin,
                version,
                capability_arguments=attachment.capability_arguments,
                previous=previous,
            )
            try:
                await self._run(plugin, call, configuration, what, deadline)
            except PluginError as error:
                if namespace_path or not any(text in error.problem.message for text in _GONE):
                    raise
                log.info("a CNI plugin found nothing to take down", plugin=what, said=error.problem.message)

    async def status(self, network: NetworkConfiguration, deadline: float) -> None:
        """Whether pods can be attached: programs are there, and say so where they can be asked. Raises NetworkError."""
        version = await self.version_for(network)
        if at_least(version, VERSION_WITH_GC):
            for plugin in network.plugins:
                what = _what(network, plugin, "STATUS")
                await self._run(plugin, PluginCall(command="STATUS"), request(network, plugin, version), what, deadline)

    async def knows_garbage(self, network: NetworkConfiguration) -> bool:
        """Whether its plugins can be asked to collect it. Raises NetworkError."""
        return not network.disable_gc and at_least(await self.version_for(network), VERSION_WITH_GC)

    async def collect_garbage(
        self, network: NetworkConfiguration, valid: Iterable[CachedAttachment], deadline: float
    ) -> None:
        """Have plugins that know how drop what belongs to no attachment but these. Raises NetworkError."""
        version = await self.version_for(network)
        attachments = [{"containerID": each.container_id, "ifname": each.interface} for each in valid]
        # The second name is what the library of the specification wrote first.
        keys = {"cni.dev/valid-attachments": attachments, "cni.dev/attachments": attachments}
        errors: list[str] = []
        for plugin in network.plugins:
            what = _what(network, plugin, "GC")
            configuration = {**request(network, plugin, version), **keys}
            try:
                await self._run(plugin, PluginCall(command="GC"), configuration, what, deadline)
            except NetworkError as error:
                errors.append(str(error))
        if errors:
            raise NetworkError("; ".join(errors))

    async def _versions_of(self, kind: str) -> frozenset[str] | None:
        """Which it speaks; asked again when its program changed. Raises NetworkError.

        None for a plugin that does not answer this as it should: such are run with what is configured, since other
        runtimes never ask.
        """
        program, key = await trio.to_thread.run_sync(self._find, kind)
        if key not in self._spoken:
            what = f"CNI plugin {kind}, VERSION"
            # The two dummies are for plugins that are older than the command.
            call = PluginCall(command="VERSION", namespace_path="dummy", interface="dummy")
            environment, asked = call.environment(self.folders), render({"cniVersion": CURRENT})
            deadline = trio.current_time() + _VERSION_TIMEOUT
            try:
                answer = await run_plugin(program, environment, asked, what=what, deadline=deadline)
                versions = spoken_versions(parse_object(answer, what), what)
            except (PluginError, CniDataError) as error:
                if not isinstance(error, PluginError) or "unknown CNI_COMMAND" not in error.problem.message:
                    log.warning("a CNI plugin does not say which versions it speaks", error=str(error))
                    return None
                versions = frozenset((OLDEST,))
            self._spoken = {old: its for old, its in self._spoken.items() if old[0] != program}
            self._spoken[key] = versions
        return self._spoken[key]

    def _find(self, kind: str) -> tuple[Path, tuple[object, ...]]:
        program = find_plugin(kind, self.folders)
        try:
            status = program.stat()
        except OSError as error:
            raise NetworkError(f"CNI plugin {kind}: {program}: {error.strerror}") from error
        return program, (program, status.st_ino, status.st_size, status.st_mtime_ns)

    async def _run(
        self, plugin: PluginConfiguration, call: PluginCall, fields: Mapping[str, Any], what: str, deadline: float
    ) -> bytes:
        program, _ = await trio.to_thread.run_sync(self._find, plugin.type)
        return await run_plugin(program, call.environment(self.folders), render(fields), what=what, deadline=deadline)


def _call(command: str, attachment: CachedAttachment, namespace_path: str) -> PluginCall:
    return PluginCall(
        command=command,
        container_id=attachment.container_id,
        namespace_path=namespace_path,
        interface=attachment.interface,
        arguments=attachment.arguments,
    )


def _previous(attachment: CachedAttachment, version: str) -> Mapping[str, Any] | None:
    """What ADD answered, in the version of the DEL. Plugins must do without where there is none."""
    if attachment.result is None or not at_least(version, _CACHED_RESULTS):
        return None
    what = f"the cached result {attachment.file_name}"
    try:
        return result_to_json(result_from_json(dict(attachment.result), version, what), version, what)
    except CniDataError as error:
        log.warning("a CNI attachment is taken down without its result", error=str(error))
        return None


def _what(network: NetworkConfiguration, plugin: PluginConfiguration, command: str) -> str:
    return f"CNI network {network.name}, plugin {plugin.type}, {command}"
