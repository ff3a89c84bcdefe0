"""What a file of `/etc/cni/net.d` says: a network, and the plugins that make it, in their order.

And what of it one plugin gets on its standard input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.embedded.network.cni.documents import (
    CniDataError,
    is_name,
    object_in,
    objects_in,
    parse_object,
    render,
    shown,
    text_in,
)
from trikubelet.embedded.network.cni.versions import configured_versions
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAGS: Final = ("disableCheck", "disableGC", "loadOnlyInlinedPlugins")
_TRUTHS: Final = {"true": True, "false": False}


@frozen
class PluginConfiguration:
    """One plugin of a network."""

    type: str
    """The name of its program."""
    capabilities: frozenset[str]
    """What it wants to be told of a pod."""
    fields: Mapping[str, Any]
    """All that is configured, these two included."""


@frozen(kw_only=True)
class NetworkConfiguration:
    """A network that pods can be attached to."""

    name: str
    versions: tuple[str, ...]
    """Of the specification, the oldest first."""
    disable_gc: bool
    inlined_only: bool
    """Whether no plugins are to be added from the folder that has the network's name."""
    plugins: tuple[PluginConfiguration, ...]
    source: bytes
    """The list that it was read from: what is cached, and read again to take an attachment down."""


def parse_list(data: bytes, what: str) -> NetworkConfiguration:
    """Read a `*.conflist`; it may be without plugins, which then come from a folder. Raises CniDataError."""
    fields = parse_object(data, what)
    flags = {name: _flag(fields, name, what) for name in _FLAGS}
    entries = objects_in(fields, "plugins", what)
    if "plugins" in fields and not entries:
        raise CniDataError(f"{what}: expected at least one plugin in plugins")
    if flags["loadOnlyInlinedPlugins"] and not entries:
        raise CniDataError(f"{what}: loadOnlyInlinedPlugins is true, and there is no plugins")
    plugins = tuple(_plugin(entry, f"{what}: plugin {number}") for number, entry in enumerate(entries))
    return NetworkConfiguration(
        name=_network_name(fields, what),
        versions=configured_versions(fields, what),
        disable_gc=flags["disableGC"],
        inlined_only=flags["loadOnlyInlinedPlugins"],
        plugins=plugins,
        source=data,
    )


def parse_single(data: bytes, what: str) -> NetworkConfiguration:
    """Read a `*.conf` or `*.json`, which is one plugin, as a list of one. Raises CniDataError."""
    fields = parse_object(data, what)
    if "plugins" in fields and "type" not in fields:
        raise CniDataError(f"{what}: it has plugins and no type: a list is read from a file named *.conflist")
    listed = {"name": fields.get("name"), "cniVersion": fields.get("cniVersion"), "plugins": [fields]}
    return parse_list(render(listed), what)


def parse_plugin(data: bytes, what: str) -> PluginConfiguration:
    """Read one plugin of a network, a file of the folder that has the network's name. Raises CniDataError."""
    return _plugin(parse_object(data, what), what)


def with_plugins(network: NetworkConfiguration, more: Sequence[PluginConfiguration]) -> NetworkConfiguration:
    """Add plugins that were read from files of their own. Raises CniDataError where there is none at all then."""
    what = f"network {network.name}"
    plugins = (*network.plugins, *more)
    if not plugins:
        raise CniDataError(f"{what}: it has no plugins, neither in its list nor in the folder of its name")
    if not more:
        return network
    fields = parse_object(network.source, what)
    fields |= {"plugins": [dict(plugin.fields) for plugin in plugins], "loadOnlyInlinedPlugins": True}
    return attrs.evolve(network, plugins=plugins, inlined_only=True, source=render(fields))


def request(
    network: NetworkConfiguration,
    plugin: PluginConfiguration,
    version: str,
    *,
    capability_arguments: Mapping[str, Any] | None = None,
    previous: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a plugin gets on its standard input; `previous` is in this version already."""
    fields = {**plugin.fields, "name": network.name, "cniVersion": version}
    told = {name: value for name, value in (capability_arguments or {}).items() if name in plugin.capabilities}
    if told:
        fields["runtimeConfig"] = told
    if previous is not None:
        fields["prevResult"] = previous
    return fields


def _network_name(fields: dict[str, Any], what: str) -> str:
    name = text_in(fields, "name", what)
    if not is_name(name):
        raise CniDataError(f"{what}: expected a name of letters, digits, '_', '.' and '-', got {shown(name)}")
    return name


def _plugin(fields: dict[str, Any], what: str) -> PluginConfiguration:
    kind = text_in(fields, "type", what)
    if not kind or "/" in kind or "\0" in kind or not kind.isprintable() or kind in (".", ".."):
        raise CniDataError(f"{what}: expected the name of a program as type, got {shown(kind)}")
    capabilities = object_in(fields, "capabilities", what)
    for name, wanted in capabilities.items():
        if wanted is not None and not isinstance(wanted, bool):
            raise CniDataError(f"{what}: expected true or false as capability {shown(name)}, got {shown(wanted)}")
    return PluginConfiguration(kind, frozenset(name for name, wanted in capabilities.items() if wanted), fields)


def _flag(fields: dict[str, Any], name: str, what: str) -> bool:
    value = fields.get(name, False)
    if isinstance(value, str):
        value = _TRUTHS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise CniDataError(f"{what}: expected true or false as {name}, got {shown(value)}")
    return value
