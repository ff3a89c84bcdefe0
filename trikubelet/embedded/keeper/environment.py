"""What all containers of a keeper share: the loop, the machine's abilities, and who forks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trikubelet.embedded.keeper.cgroups import Cgroups
    from trikubelet.embedded.keeper.event_loop import EventLoop
    from trikubelet.embedded.keeper.forker import Forker
    from trikubelet.embedded.keeper.logfile import Stamp
    from trikubelet.embedded.keeper.namespace_maker import NamespaceMaker
    from trikubelet.embedded.keeper.probe import Abilities


class Environment:
    """Handed to every container and command."""

    def __init__(
        self,
        *,
        root: str,
        loop: EventLoop,
        stamp: Stamp,
        cgroups: Cgroups,
        abilities: Abilities,
        forker: Forker,
        namespace_maker: NamespaceMaker,
    ) -> None:
        self.root = root
        self.loop = loop
        self.stamp = stamp
        self.cgroups = cgroups
        self.abilities = abilities
        self.forker = forker
        self.namespace_maker = namespace_maker

    @property
    def isolated(self) -> bool:
        """Whether containers get namespaces and a root of their own."""
        return self.abilities.mode != "plain"
