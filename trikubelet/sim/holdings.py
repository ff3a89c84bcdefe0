"""What a run of Trio holds on to: tasks, cancel scopes and memory channels. What leaks makes one of these grow."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio._core._run import CancelStatus


@frozen
class Holdings:
    """The counts at one moment."""

    tasks: int
    scopes: int
    """Cancel scopes that were entered and not left."""
    channels: int
    """Ends of memory channels that are open, in all tasks."""

    @classmethod
    def count(cls) -> Holdings:
        """Of the run in which it is called. Looks at every object that the garbage collector knows."""
        root = trio.lowlevel.current_root_task()
        assert root is not None
        tasks = list(_tasks(root))
        top = root._cancel_status
        return cls(len(tasks), sum(1 for _ in _scopes(top)), _open_channels())

    def beyond(self, usual: Holdings) -> str:
        """What is more than usual, in words; empty when nothing is."""
        mine, theirs = attrs.asdict(self), attrs.asdict(usual)
        return ", ".join(f"{mine[each] - theirs[each]} {each}" for each in mine if mine[each] > theirs[each])

    def least(self, other: Holdings) -> Holdings:
        """The smaller count of each."""
        return Holdings(
            min(self.tasks, other.tasks), min(self.scopes, other.scopes), min(self.channels, other.channels)
        )


def _tasks(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    waiting = [root]
    while waiting:
        task = waiting.pop()
        yield task
        for nursery in task.child_nurseries:
            waiting.extend(nursery.child_tasks)


def _scopes(root: CancelStatus) -> Iterator[CancelStatus]:
    """Trio's own tree of the scopes that were entered."""
    waiting = [root]
    while waiting:
        status = waiting.pop()
        yield status
        waiting.extend(status.children)


def _open_channels() -> int:
    gc.collect()
    ends = (trio.MemorySendChannel, trio.MemoryReceiveChannel)
    # By the exact type: asking some objects for their class would run their code.
    return sum(type(each) in ends and not each._closed for each in gc.get_objects())
