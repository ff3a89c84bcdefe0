"""What the kernel's log says of memory: from records of /dev/kmsg to kills. Pure.

A kill is several records: one that something "invoked oom-killer", dozens about the machine's memory, and at
the end one or two that name the victim. Which cgroup's limit was reached is said in one of three ways, by the kernel's
age:

    Task in /kubepods/a killed as a result of limit of /kubepods             before 5.0
    oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/kubepods,task_memcg=…  since 5.0
    oom-kill:constraint=CONSTRAINT_NONE,…,global_oom,task_memcg=…            since 5.0, the machine as a whole

(cadvisor: `oomparser`.)
"""

from __future__ import annotations

import re
from typing import Final

from trikubelet.formats.values import define, frozen

ROOT: Final = "/"
"""The cgroup that is short of memory when the whole machine is."""
_START: Final = "invoked oom-killer:"
_LIMIT: Final = re.compile(
    r"oom-kill:constraint=(.*),nodemask=(.*),cpuset=(.*),mems_allowed=(.*),oom_memcg=(.*),task_memcg=(.*),"
    r"task=(.*),pid=([0-9]+),uid=(.*)"
)
_LIMIT_BEFORE_5_0: Final = re.compile(r"Task in (.*) killed as a result of limit of (.*)")
_VICTIM: Final = re.compile(r"Killed process ([0-9]+) \((.+)\)")


@frozen
class OomKill:
    """The kernel killed a process for want of memory."""

    pid: int
    process: str
    """The first fifteen characters of its name, as the kernel knows it."""
    cgroup: str = ROOT
    """Whose limit was reached."""

    @property
    def of_the_machine(self) -> bool:
        """Whether there was no memory at all, rather than no more for one cgroup."""
        return self.cgroup == ROOT


def message_of(record: bytes) -> str:
    """The text of one record: `6,339,5140900,-;NET: Registered protocol family 10`, without lines of its device."""
    _, _, text = record.partition(b";")
    return text.partition(b"\n")[0].decode(errors="replace")


@define
class OomReader:
    """Joins records to kills. The log interleaves nothing: only one kill at a time is being decided."""

    _started: bool = False
    _cgroup: str = ROOT

    def take(self, message: str) -> OomKill | None:
        """Read one message; the kill that it completes."""
        if _START in message:
            self._started, self._cgroup = True, ROOT
            return None
        if not self._started:
            return None
        limit = _LIMIT.search(message)
        if limit is not None:
            return self._end(OomKill(int(limit[8]), limit[7], limit[5]))
        before = _LIMIT_BEFORE_5_0.search(message)
        if before is not None:
            self._cgroup = before[2]
            return None
        victim = _VICTIM.search(message)
        if victim is None:
            return None
        return self._end(OomKill(int(victim[1]), victim[2], self._cgroup))

    def records_lost(self) -> None:
        """Forget what was begun: what comes may belong to another kill."""
        self._started = False

    def _end(self, kill: OomKill) -> OomKill:
        self._started = False
        return kill
