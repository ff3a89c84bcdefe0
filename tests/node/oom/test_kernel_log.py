"""The kernel's own lines, of several releases."""

from __future__ import annotations

from typing import Final

import pytest

from trikubelet.node.oom.kernel_log import OomKill, OomReader, message_of

START: Final = "ruby invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0"
POD: Final = "/kubepods/burstable/podfbdfe8e3-1c87-4ff2-907c-b2ec8e25d012"
CONTAINER: Final = "ef807430361e6e82b45db92e2e9b6fbec98f419b12c591e655c1a725565e73a8"
LIMIT_5: Final = (
    f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={CONTAINER},mems_allowed=0,oom_memcg={POD},"
    f"task_memcg={POD}/{CONTAINER},task=manager,pid=966,uid=0"
)
GLOBAL_5: Final = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice/user-1000.slice/session-1.scope,task=stress,pid=1234,uid=1000"
)
LINES: Final = {
    "3.19, a cgroup": (
        [
            START,
            "ruby cpuset=/ mems_allowed=0",
            "CPU: 0 PID: 19667 Comm: ruby Not tainted 3.19.0-51-generic #57~14.04.1-Ubuntu",
            "Task in /mem2 killed as a result of limit of /mem",
            "memory: usage 1507328kB, limit 1507328kB, failcnt 2332",
            "Memory cgroup out of memory: Kill process 19667 (evilprogram2) score 1000 or sacrifice child",
            "Killed process 19667 (evilprogram2) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB",
        ],
        OomKill(19667, "evilprogram2", "/mem"),
    ),
    "3.13, the machine": (
        [
            START,
            "Out of memory: Kill process 1532 (badsysprogram) score 919 or sacrifice child",
            "Killed process 1532 (badsysprogram) total-vm:1680748kB, anon-rss:1610008kB, file-rss:0kB",
        ],
        OomKill(1532, "badsysprogram", "/"),
    ),
    "5.4, a cgroup": (
        [
            "manager invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=992",
            "Tasks state (memory values in pages):",
            "[    966]     0   966    36473    32768   344064        0           992 manager",
            LIMIT_5,
            "Memory cgroup out of memory: Killed process 966 (manager) total-vm:145892kB, anon-rss:130836kB, "
            "file-rss:236kB, shmem-rss:0kB, UID:0 pgtables:336kB oom_score_adj:992",
            "oom_reaper: reaped process 966 (manager), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        ],
        OomKill(966, "manager", POD),
    ),
    "5.15, the machine": (
        [
            "stress invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, "
            "oom_score_adj=0",
            GLOBAL_5,
            "Out of memory: Killed process 1234 (stress) total-vm:8392412kB, anon-rss:7561236kB, file-rss:4kB, "
            "shmem-rss:0kB, UID:1000 pgtables:14852kB oom_score_adj:0",
        ],
        OomKill(1234, "stress", "/"),
    ),
}


def read(lines: list[str], reader: OomReader | None = None) -> list[OomKill]:
    reader = reader or OomReader()
    return [kill for line in lines if (kill := reader.take(line)) is not None]


@pytest.mark.parametrize("release", LINES)
def test_a_kill_is_read_from_its_lines(release: str) -> None:
    lines, kill = LINES[release]
    assert read(["usb 1-1: new device", *lines, "eth0: link up"]) == [kill]


def test_kills_that_follow_each_other_are_told_apart() -> None:
    every = [line for lines, _ in LINES.values() for line in lines]
    assert read(every) == [kill for _, kill in LINES.values()]
    assert [kill.of_the_machine for kill in read(every)] == [False, True, False, True]


def test_processes_that_go_with_a_group_are_not_told_again() -> None:
    group = [f"Memory cgroup out of memory: Killed process {pid} (sh) total-vm:4kB" for pid in (966, 967, 968)]
    told = read([START, LIMIT_5, f"Tasks in {POD} are going to be killed due to memory.oom.group set", *group])
    assert told == [OomKill(966, "manager", POD)]


def test_names_may_contain_what_separates_fields() -> None:
    line = GLOBAL_5.replace("global_oom", "oom_memcg=/a").replace("task=stress", "task=a,pid=1,b")
    assert read([START, line]) == [OomKill(1234, "a,pid=1,b", "/a")]
    assert read([START, "Out of memory: Killed process 7 ((sd-pam)) total-vm:4kB"]) == [OomKill(7, "(sd-pam)")]


def test_a_kill_whose_beginning_was_lost_is_not_taken_for_the_machines() -> None:
    reader = OomReader()
    assert read([START], reader) == []
    reader.records_lost()
    assert read(["Memory cgroup out of memory: Killed process 966 (manager) total-vm:4kB"], reader) == []


def test_lines_of_a_kill_without_an_invocation_tell_nothing() -> None:
    assert read([LIMIT_5, "Killed process 1 (a) total-vm:4kB"]) == []


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"6,339,5140900,-;NET: Registered protocol family 10\n", "NET: Registered protocol family 10"),
        (b"30,340,5690716,-;udevd[80]: starting; 181\n", "udevd[80]: starting; 181"),
        (b"7,160,424069,-;pci_root: host bridge\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n", "pci_root: host bridge"),
        (b"6,1,1,-;bad \xff byte\n", "bad \ufffd byte"),
        (b"no record at all", ""),
        (b"", ""),
    ],
)
def test_the_text_is_taken_out_of_a_record(record: bytes, message: str) -> None:
    assert message_of(record) == message
