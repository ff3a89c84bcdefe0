"""What plugins answer: results of every version as one value, and the value as a result of a version.

    0.1.0, 0.2.0            `ip4` and `ip6`, one address each, with its routes
    0.3.0, 0.3.1, 0.4.0     lists of interfaces, addresses (with `version`) and routes
    1.0.0, 1.1.0            the same without `version`

A plugin must answer in the version that it was asked in; one that names no version is taken at that.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import attrs

from trikubelet.embedded.network.cni.documents import (
    CniDataError,
    number_in,
    object_in,
    objects_in,
    parse_object,
    printable,
    shown,
    text_in,
    texts_in,
)
from trikubelet.embedded.network.cni.versions import KNOWN, at_least
from trikubelet.formats.values import frozen


@frozen(kw_only=True)
class Interface:
    """A network interface that was made, in the pod (`sandbox` is the path of its namespace) or on the machine."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    socket_path: str = ""
    pci_id: str = ""


@frozen(kw_only=True)
class Address:
    """An address with the length of its prefix: `10.1.0.2/24`."""

    address: str
    gateway: str = ""
    interface: int | None = None
    """Which of the result's interfaces has it; None where the plugin does not say."""

    @property
    def ip(self) -> str:
        return self.address.partition("/")[0]

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4


@frozen(kw_only=True)
class Route:
    """A route; `table` and `scope` may be 0, so None says that they are not given."""

    dst: str
    gw: str = ""
    mtu: int = 0
    advmss: int = 0
    priority: int = 0
    table: int | None = None
    scope: int | None = None


@frozen(kw_only=True)
class Dns:
    """What the network says of name servers. Kubernetes takes no account of it."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@frozen(kw_only=True)
class Result:
    """What an ADD made."""

    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = attrs.field(factory=Dns)


@frozen
class PluginProblem:
    """A plugin's error result."""

    code: int
    message: str


def parse_result(answer: bytes, asked: str, what: str) -> Result:
    """What a plugin printed after an ADD in a version. Raises CniDataError."""
    return result_from_json(parse_object(answer, what), asked, what)


def result_from_json(fields: dict[str, Any], asked: str, what: str) -> Result:
    """Raises CniDataError."""
    version = text_in(fields, "cniVersion", what) or asked
    if version not in KNOWN:
        raise CniDataError(f"{what}: expected a result of a version up to {KNOWN[-1]}, got {shown(version)}")
    dns = _dns(object_in(fields, "dns", what), what)
    if at_least(version, "0.3.0"):
        return Result(
            interfaces=tuple(_interface(entry, what) for entry in objects_in(fields, "interfaces", what)),
            addresses=tuple(_address(entry, "address", what) for entry in objects_in(fields, "ips", what)),
            routes=_routes(fields, what),
            dns=dns,
        )
    old = [object_in(fields, key, what) for key in ("ip4", "ip6") if fields.get(key) is not None]
    return Result(
        addresses=tuple(_address(entry, "ip", what) for entry in old),
        routes=tuple(route for entry in old for route in _routes(entry, what)),
        dns=dns,
    )


def result_to_json(result: Result, version: str, what: str) -> dict[str, Any]:
    """The result as one of that version; the oldest have room for one address of each family, and need one.

    Raises CniDataError.
    """
    if not at_least(version, "0.3.0"):
        return _to_old(result, version, what)
    whole = at_least(version, "1.0.0")
    dns = _filled(nameservers=result.dns.nameservers, **_dns_rest(result.dns))
    return {
        "cniVersion": version,
        **_filled(
            interfaces=[_interface_to_json(each, whole=whole) for each in result.interfaces],
            ips=[_address_to_json(each, whole=whole) for each in result.addresses],
            routes=[_route_to_json(each) for each in result.routes],
        ),
        **({"dns": dns} if dns or not whole else {}),
    }


def parse_problem(answer: bytes, what: str) -> PluginProblem:
    """What a plugin that failed printed. Raises CniDataError."""
    fields = parse_object(answer, what)
    parts = (text_in(fields, "msg", what), text_in(fields, "details", what))
    message = "; ".join(printable(part) for part in parts if part.strip())
    return PluginProblem(number_in(fields, "code", what) or 0, message)


def pod_addresses(result: Result, interface: str, what: str) -> tuple[str, ...]:
    """The pod's addresses: those of its interface, at most one of each family, IPv4 first as with containerd.

    An address of which the plugin does not say whose it is belongs to that interface. Raises CniDataError.
    """
    found: dict[int, str] = {}
    for address in result.addresses:
        if address.interface is not None and not 0 <= address.interface < len(result.interfaces):
            raise CniDataError(
                f"{what}: address {address.address} is on interface {address.interface} of {len(result.interfaces)}"
            )
        owner = interface if address.interface is None else result.interfaces[address.interface].name
        if owner == interface:
            found.setdefault(address.family, address.ip)
    if not found:
        raise CniDataError(f"{what}: its plugins succeeded and gave {interface} no address")
    return tuple(found[family] for family in sorted(found))


def _interface(fields: dict[str, Any], what: str) -> Interface:
    return Interface(
        name=text_in(fields, "name", what),
        mac=text_in(fields, "mac", what),
        mtu=number_in(fields, "mtu", what) or 0,
        sandbox=text_in(fields, "sandbox", what),
        socket_path=text_in(fields, "socketPath", what),
        pci_id=text_in(fields, "pciID", what),
    )


def _address(fields: dict[str, Any], key: str, what: str) -> Address:
    return Address(
        address=_prefixed(text_in(fields, key, what), what),
        gateway=_ip(text_in(fields, "gateway", what), what),
        interface=number_in(fields, "interface", what),
    )


def _routes(fields: dict[str, Any], what: str) -> tuple[Route, ...]:
    return tuple(
        Route(
            dst=_prefixed(text_in(entry, "dst", what), what),
            gw=_ip(text_in(entry, "gw", what), what),
            mtu=number_in(entry, "mtu", what) or 0,
            advmss=number_in(entry, "advmss", what) or 0,
            priority=number_in(entry, "priority", what) or 0,
            table=number_in(entry, "table", what),
            scope=number_in(entry, "scope", what),
        )
        for entry in objects_in(fields, "routes", what)
    )


def _dns(fields: dict[str, Any], what: str) -> Dns:
    return Dns(
        nameservers=texts_in(fields, "nameservers", what),
        domain=text_in(fields, "domain", what),
        search=texts_in(fields, "search", what),
        options=texts_in(fields, "options", what),
    )


def _prefixed(text: str, what: str) -> str:
    ip, slash, length = text.partition("/")
    try:
        if not (slash and length.isascii() and length.isdigit()) or "%" in ip:
            raise ValueError
        return str(ipaddress.ip_interface(text))
    except ValueError:
        raise CniDataError(f"{what}: expected an address such as 10.1.0.2/24, got {shown(text)}") from None


def _ip(text: str, what: str) -> str:
    if not text:
        return ""
    try:
        if "%" in text:
            raise ValueError
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise CniDataError(f"{what}: expected an IP address, got {shown(text)}") from None


def _filled(**fields: Any) -> dict[str, Any]:
    """Without those that are empty, which the specification leaves out."""
    return {name: value for name, value in fields.items() if value}


def _dns_rest(dns: Dns) -> dict[str, Any]:
    return {"domain": dns.domain, "search": dns.search, "options": dns.options}


def _interface_to_json(interface: Interface, *, whole: bool) -> dict[str, Any]:
    newer = {"mtu": interface.mtu, "socketPath": interface.socket_path, "pciID": interface.pci_id} if whole else {}
    return {"name": interface.name, **_filled(mac=interface.mac, sandbox=interface.sandbox, **newer)}


def _address_to_json(address: Address, *, whole: bool) -> dict[str, Any]:
    owner = {} if address.interface is None else {"interface": address.interface}
    version = {} if whole else {"version": str(address.family)}
    return {**version, **owner, "address": address.address, **_filled(gateway=address.gateway)}


def _route_to_json(route: Route) -> dict[str, Any]:
    placed = {name: value for name, value in (("table", route.table), ("scope", route.scope)) if value is not None}
    numbers = _filled(mtu=route.mtu, advmss=route.advmss, priority=route.priority)
    return {"dst": route.dst, **_filled(gw=route.gw), **numbers, **placed}


def _to_old(result: Result, version: str, what: str) -> dict[str, Any]:
    firsts = {address.family: address for address in reversed(result.addresses)}
    if not firsts:
        raise CniDataError(f"{what}: a result of version {version} needs an address, and there is none")
    families = {}
    for family, address in sorted(firsts.items()):
        routes = [
            {"dst": route.dst, **_filled(gw=route.gw)} for route in result.routes if (":" in route.dst) == (family == 6)
        ]
        families[f"ip{family}"] = {"ip": address.address, **_filled(gateway=address.gateway, routes=routes)}
    dns = _filled(nameservers=result.dns.nameservers, **_dns_rest(result.dns))
    return {"cniVersion": version, **families, "dns": dns}
