"""Families about the node's plugins: those that come by themselves, and programs that know credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.plugins.registration import PluginStatus
    from trikubelet.runtime.images.credentials.plugins import Plugins
    from trikubelet.telemetry.families import AnyFamily


def collect_plugins(plugins: Iterable[PluginStatus]) -> Iterator[AnyFamily]:
    found = tuple(plugins)
    values = {(one.socket, "actual_state_of_world"): 1 for one in found if one.registered}
    values |= {(one.socket, "desired_state_of_world"): 1 for one in found if one.wanted}
    text = "Plugins that are registered, and sockets of plugins that are there."
    yield gauge("plugin_manager_total_plugins", text, values, ("socket_path", "state"))


def collect_credential_plugins(plugins: Plugins) -> Iterator[AnyFamily]:
    label = ("plugin_name",)
    text = "Runs of programs for credentials that failed."
    yield counter("kubelet_credential_provider_plugin_errors_total", text, plugins.metrics.errors, label)
    text = "Seconds that programs for credentials took."
    yield histogram("kubelet_credential_provider_plugin_duration", text, plugins.metrics.durations, label)
    text = "Always 1: which configuration of programs for credentials was read at the start."
    yield gauge("kubelet_credential_provider_config_info", text, {(plugins.config_hash,): 1}, ("hash",))
