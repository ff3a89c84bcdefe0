"""The checks of the network that pods of the embedded runtime get, and of the names that they can resolve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import CheckResult, Level, check_user_namespaces, fail, ok, warn
from trikubelet.linux.resolver import RESOLV_CONF, SYSTEMD_RESOLV_CONF, leads_nowhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trikubelet.cli.machine_checks import Machine
    from trikubelet.embedded.network.choice import Choice, NetworkOptions
    from trikubelet.embedded.network.model import PodNetwork

_WAYS: Final = {
    "cni": "by the CNI plugins that are configured",
    "bridge": "on a bridge of the runtime's own",
    "pasta": "by pasta: behind the machine's address",
}
_HINT: Final = "see Network in docs/embedded.md"


def check_networks(root_dir: Path, machine: Machine, options: NetworkOptions) -> Iterator[CheckResult]:
    """Which network pods would get by these options, and why no better one."""
    yield from check_pod_network(root_dir, machine, options)
    yield check_resolver()


def chosen_network(root_dir: Path, machine: Machine) -> Choice:
    """Which network pods of an agent with this root folder would get, without any flags."""
    from trikubelet.embedded.network.choice import NetworkOptions
    from trikubelet.embedded.network.ways import all_networks

    options = NetworkOptions()
    return _choose(all_networks(root_dir / "runtime", options), machine, options)


def _choose(networks: Mapping[str, PodNetwork], machine: Machine, options: NetworkOptions) -> Choice:
    import trio

    from trikubelet.embedded.network.choice import choose

    namespaces = check_user_namespaces(machine)
    impossible = "" if namespaces.level is Level.OK else namespaces.finding
    return trio.run(choose, options, networks, impossible)


def check_pod_network(root_dir: Path, machine: Machine, options: NetworkOptions) -> Iterator[CheckResult]:
    """The network, and what would be changed on the machine for it."""
    import trio

    from trikubelet.embedded.network.choice import BRIDGE, HOST
    from trikubelet.embedded.network.model import NetworkError
    from trikubelet.embedded.network.ways import all_networks

    subject = "pod network"
    try:
        networks = all_networks(root_dir / "runtime", options)
    except NetworkError as error:
        yield fail(subject, str(error), "give one range for each family, as 10.244.1.0/24,fd00:1::/64")
        return
    choice = _choose(networks, machine, options)
    if choice.way == HOST and options.way == HOST:
        yield ok(subject, "the machine's: two pods cannot listen on the same port")
        return
    if choice.way == HOST:
        yield warn(
            subject,
            f"pods share the machine's: two of them cannot listen on the same port ({choice.why})",
            "run as root, or install pasta (Debian: apt-get install passt)",
        )
        return
    if problem := trio.run(networks[choice.way].problem):
        yield warn(subject, f"{_WAYS[choice.way]}, for which pods have to wait: {problem}", _HINT)
        return
    yield ok(subject, _WAYS[choice.way])
    if choice.way == BRIDGE:
        yield from _check_bridge(subject, root_dir, options)


def _check_bridge(subject: str, root_dir: Path, options: NetworkOptions) -> Iterator[CheckResult]:
    import trio

    from trikubelet.embedded.network.bridge.network import BridgeNetwork
    from trikubelet.embedded.network.model import NetworkError
    from trikubelet.embedded.network.ways import subnets

    bridge = BridgeNetwork(str(root_dir / "runtime"), subnets=subnets(options.pod_cidr))
    try:
        changes, warnings = trio.run(bridge.plans)
    except NetworkError as error:
        yield warn(subject, str(error), _HINT)
        return
    for text in changes:
        yield ok(subject, text)
    for text in warnings:
        finding, _, fix = text.partition(": ")
        yield warn(subject, finding, fix)


def check_resolver() -> CheckResult:
    """Whether pods with a network of their own can resolve what the machine resolves."""
    subject = "name servers"
    try:
        nowhere = leads_nowhere(RESOLV_CONF)
    except OSError:
        return ok(subject, f"there is no {RESOLV_CONF}")
    if not nowhere:
        return ok(subject, f"those of {RESOLV_CONF}")
    if SYSTEMD_RESOLV_CONF.exists():
        return ok(subject, f"those of {SYSTEMD_RESOLV_CONF}: {RESOLV_CONF} names the machine's loopback alone")
    return warn(
        subject,
        f"{RESOLV_CONF} names the machine's loopback alone, which pods with a network of their own cannot reach",
        "set resolvConf in the configuration to a file with name servers that pods can reach",
    )
