"""What this machine lets the keeper do, found out by doing it once in a forked process."""

from __future__ import annotations

import json
import os

from trikubelet.embedded.keeper import linux, overlays
from trikubelet.embedded.keeper.protocol import read_bytes
from trikubelet.linux.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_ALL_IDS = (1 << 32) - 1


class Abilities:
    """`mode`: "root" (namespaces by privilege), "user-namespace" (the same with one user id), "plain" (neither)."""

    __slots__ = ("mode", "network", "one_user_only", "overlay", "problems")

    def __init__(self, mode: str, *, network: bool, one_user_only: bool, overlay: bool, problems: list[str]) -> None:
        self.mode = mode
        self.network = network
        """Whether pods can have network namespaces."""
        self.one_user_only = one_user_only
        self.overlay = overlay
        self.problems = problems


def find_abilities(root: str) -> Abilities:
    """Try namespaces with the privileges there are, then in a user namespace, which is entered for good if it works."""
    problems: list[str] = []
    if os.geteuid() == 0:
        ids = _mapped_ids()
        nested = ids < _ALL_IDS
        outcome = _in_child(lambda: _try_container(root, in_user_namespace=nested))
        if outcome["works"]:
            mode = "user-namespace" if nested else "root"
            return Abilities(
                mode,
                network=outcome["network"],
                one_user_only=ids == 1,
                overlay=outcome["overlay"],
                problems=outcome["problems"],
            )
        problems += [f"namespaces as root: {problem}" for problem in outcome["problems"]]
    outcome = _in_child(lambda: _try_in_user_namespace(root))
    if outcome["works"]:
        enter_user_namespace()
        problems += outcome["problems"]
        return Abilities(
            "user-namespace",
            network=outcome["network"],
            one_user_only=True,
            overlay=outcome["overlay"],
            problems=problems,
        )
    problems += [f"user namespace: {problem}" for problem in outcome["problems"]]
    one_user_only = os.geteuid() != 0 or _mapped_ids() == 1
    return Abilities("plain", network=False, one_user_only=one_user_only, overlay=False, problems=problems)


def _mapped_ids() -> int:
    """How many user ids this process's user namespace knows."""
    lines = read_bytes("/proc/self/uid_map").splitlines()
    return sum(int(line.split()[2]) for line in lines)


def enter_user_namespace() -> None:
    """Make this process root of a user namespace that knows its own user and group only."""
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _try_in_user_namespace(root: str) -> dict[str, Any]:
    enter_user_namespace()
    return _try_container(root, in_user_namespace=True)


def _try_container(root: str, *, in_user_namespace: bool) -> dict[str, Any]:
    """Make the namespaces and the mounts of a container. In a forked process: its namespaces are spoiled afterwards."""
    linux.unshare(linux.CLONE_NEWUTS | linux.CLONE_NEWIPC)
    attempt = lambda: _try_mounts(root, in_user_namespace=in_user_namespace)  # noqa: E731
    return _in_child(attempt, flags=linux.CLONE_NEWPID)


def _try_network() -> list[str]:
    """Why there are no network namespaces, if so."""
    try:
        linux.unshare(linux.CLONE_NEWNET)
        # What shows a container its own network. Where the machine's is partly hidden the kernel may refuse it.
        os.close(linux.new_mount("sysfs", read_only=True))
    except OSError as error:
        return [f"no network namespaces ({error}): pods are on the machine's network"]
    return []


def _try_mounts(root: str, *, in_user_namespace: bool) -> dict[str, Any]:
    directory = f"{root}/probe-{os.getpid()}"
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_SLAVE)
    for name in ("lower", "upper", "work", "rootfs"):
        os.makedirs(f"{directory}/{name}")
    problems: list[str] = []
    try:
        overlay = True
        target = f"{directory}/rootfs"
        try:
            overlays.mount_overlay([f"{directory}/lower"], directory, target, in_user_namespace=in_user_namespace)
        except OSError as error:
            overlay = False
            problems.append(f"no overlay in {root} ({error}): roots of containers are read-only")
            linux.mount(f"{directory}/lower", target, None, linux.MS_BIND)
        tree = linux.open_tree("/dev/null", recursive=False)
        linux.set_mount_attributes("", descriptor=tree, propagation=linux.MS_PRIVATE)
        os.close(tree)
        os.close(linux.open_without_magic("/dev/null", os.O_PATH))
        os.close(linux.new_mount("proc"))
        no_network = _try_network()
        linux.unmount(target)
    finally:
        remove_tree(directory)
    return {"works": True, "overlay": overlay, "network": not no_network, "problems": problems + no_network}


def _in_child(attempt: Callable[[], dict[str, Any]], flags: int = 0) -> dict[str, Any]:
    """The result of `attempt` in a forked process, or its failure as a problem."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = linux.fork(flags) if flags else os.fork()
    if pid == 0:
        try:
            outcome = attempt()
        except BaseException as error:  # noqa: BLE001 - a forked process must not return into its parent's code
            outcome = {"works": False, "overlay": False, "problems": [str(error)]}
        os.write(writer, json.dumps(outcome).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    if not answer:
        return {"works": False, "overlay": False, "problems": ["the attempt ended without an answer"]}
    result: dict[str, Any] = json.loads(answer)
    return result
