"""The kubelet's chains in iptables, which are there for others (kubelet: `kubelet_network_linux.go`).

    mangle  KUBE-IPTABLES-HINT    empty: in which iptables it is found, legacy or nft, others are to write too
    filter  KUBE-FIREWALL         IPv4: drops packets to 127.0.0.0/8 from elsewhere, which get through where somebody
                                  has set `route_localnet`, as kube-proxy does for node ports (CVE-2020-8558)
    each    KUBE-KUBELET-CANARY   empty: gone when somebody has flushed the tables, and then all is made again

The system's own programs are called, so that what they make is found by those who call them too. The chains stay when
the agent ends: they are the next agent's as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import trio

from trikubelet.formats.values import frozen
from trikubelet.linux.programs import Finished, TooMuchOutputError, run_program
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

log = get_logger("iptables")

CHECK_PERIOD: Final = 60.0
"""Seconds between two looks for the canary, and until what failed is tried again."""
FLUSH_TIMEOUT: Final = 5.0
"""Seconds that a flush may take from its first table to its last (kubelet: `iptablesFlushTimeout`)."""
FLUSH_POLL: Final = 0.1
CALL_TIMEOUT: Final = 30.0
"""Seconds for one call, which itself waits five for iptables' lock."""

HINT: Final = "KUBE-IPTABLES-HINT"
FIREWALL: Final = "KUBE-FIREWALL"
CANARY: Final = "KUBE-KUBELET-CANARY"

_WAIT: Final = ("-w", "5")
_SYSTEM: Final = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_MOST_OUTPUT: Final = 2**20
_MOST_ERRORS: Final = 2**10

_NO: Final = 1
"""How iptables ends for "it is there already", "it is not there" and "no such rule"."""
_BUSY: Final = 4
"""How it ends when somebody else holds its lock, or it lacks the rights."""


@frozen
class Chain:
    """A chain that has to be there."""

    table: str
    name: str

    @property
    def create(self) -> tuple[str, ...]:
        return ("-N", self.name, "-t", self.table)

    @property
    def show(self) -> tuple[str, ...]:
        return ("-S", self.name, "-t", self.table)


@frozen
class Rule:
    """A rule that has to be in a chain."""

    position: str
    """`-I`: before all others, `-A`: behind them."""
    chain: Chain
    says: tuple[str, ...]

    @property
    def check(self) -> tuple[str, ...]:
        return ("-C", self.chain.name, "-t", self.chain.table, *self.says)

    @property
    def add(self) -> tuple[str, ...]:
        return (self.position, *self.check[1:])


@frozen
class Family:
    """What is wanted of one of the two programs, in this order."""

    protocol: str
    program: str
    wanted: tuple[Chain | Rule, ...]


_POSTROUTING: Final = Chain("nat", "POSTROUTING")
"""There wherever iptables works (kubelet: `Present`)."""
_HINT: Final = Chain("mangle", HINT)
_FIREWALL: Final = Chain("filter", FIREWALL)
_TO_FIREWALL: Final = ("-j", FIREWALL)
# Word for word the kubelet's and kube-proxy's, so that each finds the other's.
_DROP_MARTIANS: Final = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8"),
    *("!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT"),
    *("-j", "DROP"),
)
IPV4: Final = Family(
    "IPv4",
    "iptables",
    (
        _HINT,
        _FIREWALL,
        Rule("-I", Chain("filter", "OUTPUT"), _TO_FIREWALL),
        Rule("-I", Chain("filter", "INPUT"), _TO_FIREWALL),
        Rule("-A", _FIREWALL, _DROP_MARTIANS),
    ),
)
IPV6: Final = Family("IPv6", "ip6tables", (_HINT,))
CANARIES: Final = tuple(Chain(table, CANARY) for table in ("mangle", "nat", "filter"))

Call: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Finished]]
"""Runs a program with arguments. Raises IptablesError when it cannot be run, or does not end."""


class IptablesError(Exception):
    """A call of iptables did not do what it should."""


async def keep_chains() -> None:
    """Make the chains and keep them, until cancelled. Returns where there is no iptables, after saying so."""
    await keep_chains_by(call_program)


async def keep_chains_by(call: Call) -> None:
    """As `keep_chains`."""
    problems = {family: await _problem(call, family) for family in (IPV4, IPV6)}
    present = [family for family, problem in problems.items() if problem is None]
    if not present:
        # Nobody on this machine can need them then: nothing to worry about (kubelet: `initNetworkUtil`).
        log.info(f"no iptables on this machine: the chain {HINT} is not made", why=problems[IPV4])
        return
    async with trio.open_nursery() as nursery:
        for family in present:
            nursery.start_soon(supervise, _keep, call, family, name=f"chains of {family.program}")


async def _problem(call: Call, family: Family) -> str | None:
    """Why this program is of no use here."""
    try:
        await _expect(call, family, _POSTROUTING.show)
    except IptablesError as error:
        return str(error)
    return None


async def _keep(call: Call, family: Family) -> None:
    failed = False
    while True:
        try:
            await make_chains(call, family)
        except IptablesError as error:
            if not failed:
                log.warning(
                    "iptables' chains could not be made, will try again", program=family.program, why=str(error)
                )
            failed = True
            await trio.sleep(CHECK_PERIOD)
        else:
            failed = False
            log.info("iptables' chains are made", protocol=family.protocol)
            await _until_flushed(call, family)
            log.info("iptables was flushed: its chains are made again", protocol=family.protocol)


async def make_chains(call: Call, family: Family) -> None:
    """Have all that is wanted be there, and the canaries last. Raises IptablesError."""
    for one in (*family.wanted, *CANARIES):
        if isinstance(one, Chain):
            await _expect(call, family, one.create, _NO)
        elif (await _expect(call, family, one.check, _NO)).code == _NO:
            await _expect(call, family, one.add)


async def _until_flushed(call: Call, family: Family) -> None:
    """Return when the canary of the first table is gone, and, if that comes soon, those of the others: what is made
    while a flush goes on would be flushed too."""
    first, *others = CANARIES
    await _until_gone(call, family, first, period=CHECK_PERIOD)
    with trio.move_on_after(FLUSH_TIMEOUT) as limit:
        for canary in others:
            await _until_gone(call, family, canary, period=FLUSH_POLL)
    if limit.cancelled_caught:
        log.info("iptables was flushed in part", protocol=family.protocol)


async def _until_gone(call: Call, family: Family, chain: Chain, *, period: float) -> None:
    while True:
        await trio.sleep(period)
        if await _is_gone(call, family, chain):
            return


async def _is_gone(call: Call, family: Family, chain: Chain) -> bool:
    """False also when that cannot be said now."""
    try:
        answer = await call(family.program, (*_WAIT, *chain.show))
    except IptablesError as error:
        log.warning("cannot look for iptables' canary", program=family.program, why=str(error))
        return False
    return answer.code not in (0, _BUSY)


async def _expect(call: Call, family: Family, arguments: Sequence[str], *also: int) -> Finished:
    """Call it. Raises IptablesError when it ends neither with 0 nor with one of `also`."""
    answer = await call(family.program, (*_WAIT, *arguments))
    if answer.code not in (0, *also):
        said = answer.stderr.decode(errors="replace").strip()
        command = " ".join((family.program, *arguments))
        raise IptablesError(f"expected `{command}` to succeed, it ended with {answer.ending}: {said}")
    return answer


async def call_program(program: str, arguments: Sequence[str]) -> Finished:
    """Implements `Call` by the machine's programs."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM])
    found = shutil.which(program, path=path)
    if found is None:
        raise IptablesError(f"{program} is not installed")
    try:
        with trio.fail_after(CALL_TIMEOUT):
            return await run_program(
                [found, *arguments],
                env={**os.environ, "LC_ALL": "C"},
                most_stdout=_MOST_OUTPUT,
                most_stderr=_MOST_ERRORS,
            )
    except trio.TooSlowError:
        raise IptablesError(f"{program} did not end within {CALL_TIMEOUT:g} s") from None
    except (OSError, ValueError, TooMuchOutputError) as error:
        raise IptablesError(f"cannot run {found}: {error}") from error
