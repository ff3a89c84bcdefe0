"""`PodCgroups` for parts of the agent that are made before the runtime has said how cgroups are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.cgroups.names import CgroupName
    from trikubelet.cgroups.settings import CgroupReading, CgroupSettings


@define
class LatePodCgroups:
    """Until they are opened, and where there are none to open, pods run where the runtime puts them."""

    _opened: PodCgroups = NoPodCgroups()

    def open(self, cgroups: PodCgroups) -> None:
        self._opened = cgroups

    def parent_of(self, pod: Pod) -> str:
        return self._opened.parent_of(pod)

    async def exists(self, pod: Pod) -> bool:
        return await self._opened.exists(pod)

    async def ensure(self, pod: Pod) -> bool:
        return await self._opened.ensure(pod)

    async def read(self, pod: Pod) -> CgroupReading | None:
        return await self._opened.read(pod)

    async def set(self, pod: Pod, settings: CgroupSettings) -> None:
        await self._opened.set(pod, settings)

    async def release(self, uid: str) -> None:
        await self._opened.release(uid)

    async def found(self) -> dict[str, CgroupName]:
        return await self._opened.found()

    async def throttle(self, uid: str) -> None:
        await self._opened.throttle(uid)

    def pods_changed(self) -> None:
        self._opened.pods_changed()
