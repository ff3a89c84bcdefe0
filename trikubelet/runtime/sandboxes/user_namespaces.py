"""User namespaces of pods (hostUsers: false; KEP-127; kubelet: `userns_manager.go`).

Each such pod gets a block of user and group ids of the node that no other pod has: root in the pod is the first of the
block. Blocks are written down in the pods' directories, in the kubelet's format, and read back by an agent that starts:
a pod's block must not change while its containers run, nor be given to another pod. The file is replaced as a whole but
not forced to the disk, which would hold up everybody else: an agent that is killed leaves it in the page cache, and
after a crash of the machine nothing runs that has ids. A block that was given back is the last one to be given again.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.container.errors import SandboxConfigError
from trikubelet.formats.values import frozen
from trikubelet.linux.programs import TooMuchOutputError, run_program
from trikubelet.rpc.cri import v1
from trikubelet.runtime.options import IDRange
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Container as Holder
    from collections.abc import Iterable
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.runtime.options import RuntimeOptions

log = get_logger("runtime")

UNIT: Final = 65_536
"""Blocks are multiples of this."""
RECORD: Final = "userns"
"""The file in a pod's directory."""
_ALL_IDS: Final = 2**32
_NODE_USER: Final = "kubelet"
_GETSUBIDS: Final = "getsubids"
_TIMEOUT: Final = 60.0
"""Seconds for getsubids, which may ask a directory server."""
_MAX_ANSWER: Final = 64 * 1024
_MAX_STDERR: Final = 4096
"""Bytes."""


@frozen
class UserNamespaceError(SandboxConfigError):
    """A pod cannot have the user namespace that it asks for, or this node can give none."""


class UserNamespaces:
    """Gives pods their blocks of ids. Nothing here waits: what is on disk is read at once, and is tiny."""

    def __init__(self, options: RuntimeOptions) -> None:
        """Raises UserNamespaceError when the node's ids cannot be shared out as configured."""
        self._options = options
        self._size = options.ids_per_pod
        self._range = options.user_ids or whole_range(self._size)
        check_range(self._range, self._size, options.max_pods)
        self._first_ids: dict[str, int] = {}
        """The first id of the node in each pod's block, by the pod's uid."""
        self._next = 0
        """The block to try first."""
        self._adopted = False

    def for_pod(
        self,
        pod: Pod,
        handler: str = "",
        abilities: RuntimeAbilities = RuntimeAbilities(),  # noqa: B008 - frozen
    ) -> v1.UserNamespace:
        """The namespace for the sandbox and all containers of a pod (kubelet: `GetOrCreateUserNamespaceMappings`).

        `handler` is the runtime handler of the pod's class, `abilities` are the runtime's. The same pod gets the same
        ids until they are released. Raises UserNamespaceError.
        """
        if pod.spec.host_users is not False:
            return v1.UserNamespace(mode=v1.NamespaceMode.NODE)
        _check_ability(handler, abilities)
        uid = pod.metadata.uid
        try:
            self.adopt()
            first = self._first_ids.get(uid)
            if first is None:
                first = self._free_block()
                self._write(uid, first)
                self._first_ids[uid] = first
            elif not self._record(uid).exists():
                self._write(uid, first)
        except OSError as error:
            raise UserNamespaceError(f"create user namespace: {error}") from error
        uids, gids = ([v1.IdMapping(host_id=first, container_id=0, length=self._size)] for _ in range(2))
        return v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=uids, gids=gids)

    def adopt(self) -> None:
        """Read what an agent before this one gave out; once. Raises UserNamespaceError or OSError.

        A record that cannot be read stops all further giving, since its block is not known: the error names the file.
        """
        if self._adopted:
            return
        found: dict[str, int] = {}
        for uid in self._pods_on_disk():
            text = self._read(uid)
            if not text:
                continue
            try:
                found[uid] = self._check_record(uid, _parse_record(text), found)
            except UserNamespaceError as error:
                raise UserNamespaceError(
                    f'record pod mappings for existing pod "{uid}": {error}: '
                    f"end that pod and remove {self._record(uid)} before pods can get user namespaces"
                ) from None
        self._first_ids, self._adopted = found, True

    def release(self, uid: str) -> None:
        """Take back the ids of a pod of which nothing runs any more. Raises OSError; a pod without ids is no error."""
        self._record(uid).unlink(missing_ok=True)
        self._first_ids.pop(uid, None)

    def release_others(self, uids: Holder[str]) -> None:
        """Take back the ids of all pods but these (kubelet: `CleanupOrphanedPodUsernsAllocations`). Raises OSError.

        `uids`: pods that are wanted or that still run something.
        """
        known = self._first_ids if self._adopted else self._pods_on_disk()
        for uid in [uid for uid in known if uid not in uids]:
            self.release(uid)

    def statistics(self) -> dict[str, int]:
        """How many blocks are given out, of how many."""
        return {"used": len(self._first_ids), "blocks": self._range.length // self._size}

    def _free_block(self) -> int:
        """The first id of a block that no pod has. Raises UserNamespaceError when there is none."""
        blocks = self._range.length // self._size
        taken = set(self._first_ids.values())
        for step in range(min(blocks, len(taken) + 1)):
            block = (self._next + step) % blocks
            first = self._range.first + block * self._size
            if first not in taken:
                self._next = (block + 1) % blocks
                return first
        raise UserNamespaceError("create user namespace: could not find an empty slot to allocate a user namespace")

    def _check_record(self, uid: str, mapping: _Mapping, others: dict[str, int]) -> int:
        """The first id of a record that fits this node's blocks. Raises UserNamespaceError."""
        if mapping.length != self._size:
            raise UserNamespaceError(f"wrong user namespace length {mapping.length}")
        if mapping.host_id % self._size:
            raise UserNamespaceError(f"wrong user namespace offset specified {mapping.host_id}")
        if not self._range.first <= mapping.host_id < self._range.first + self._range.length:
            raise UserNamespaceError(f"id {mapping.host_id} is out of range")
        if mapping.host_id in others.values():
            raise UserNamespaceError(f'range picked for pod "{uid}" already taken')
        return mapping.host_id

    def _pods_on_disk(self) -> Iterable[str]:
        pods = self._options.pod_directory("x").parent
        try:
            return sorted(entry.name for entry in pods.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return ()

    def _record(self, uid: str) -> Path:
        return self._options.pod_directory(uid) / RECORD

    def _read(self, uid: str) -> str:
        """Empty where there is no record, or only its name and its size came to the disk."""
        try:
            return self._record(uid).read_text(errors="replace").strip("\0")
        except FileNotFoundError:
            return ""

    def _write(self, uid: str, first: int) -> None:
        ids = [{"hostId": first, "containerId": 0, "length": self._size}]
        path = self._record(uid)
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        half = path.with_name(f".{RECORD}")
        half.touch(mode=0o600)
        half.write_text(json.dumps({"uidMappings": ids, "gidMappings": ids}, separators=(",", ":")))
        half.replace(path)


@frozen
class _Mapping:
    """One line of a record."""

    host_id: int
    container_id: int
    length: int


def whole_range(ids_per_pod: int) -> IDRange:
    """All ids but those of the node's own users."""
    return IDRange(ids_per_pod, _ALL_IDS - ids_per_pod)


def check_range(ids: IDRange, ids_per_pod: int, max_pods: int) -> None:
    """Raises UserNamespaceError when the ids cannot be cut into blocks for so many pods (`MakeUserNsManager`)."""
    if ids_per_pod <= 0 or ids_per_pod % UNIT:
        raise UserNamespaceError(f"kubelet user namespace length {ids_per_pod} is not a multiple of {UNIT}")
    if ids.first % ids_per_pod:
        raise UserNamespaceError(f"kubelet user assigned ID {ids.first} is not a multiple of {ids_per_pod}")
    if ids.first < ids_per_pod:
        raise UserNamespaceError(f"kubelet user assigned ID {ids.first} must be greater or equal to {ids_per_pod}")
    if ids.length % ids_per_pod:
        raise UserNamespaceError(f"kubelet user assigned IDs length {ids.length} is not a multiple of {ids_per_pod}")
    if ids.length // ids_per_pod < max_pods:
        raise UserNamespaceError(f"kubelet user assigned IDs are not enough to support {max_pods} pods")


async def id_range_of_node(ids_per_pod: int, user: str = _NODE_USER) -> IDRange:
    """The ids that the administrator set aside for pods: the subordinate ids of the user `kubelet`.

    Without that user, or without the tool that tells them, pods may have all ids. May be cancelled. Raises
    UserNamespaceError when there is a user, but not one range of ids that is the same for users and groups
    (kubelet: `getKubeletMappings`).
    """
    try:
        # A directory server may have to be asked for the user.
        await trio.to_thread.run_sync(pwd.getpwnam, user, abandon_on_cancel=True)
    except KeyError:
        return whole_range(ids_per_pod)
    tool = shutil.which(_GETSUBIDS)
    if tool is None:
        log.info("no getsubids on this node: pods with user namespaces may have all ids", user=user)
        return whole_range(ids_per_pod)
    users = await _ask(tool, user, kind="uids")
    groups = await _ask(tool, "-g", user, kind="gids")
    if users != groups:
        raise UserNamespaceError(f'kubelet mappings: mismatched subuids and subgids for user "{user}"')
    return parse_subordinate_ids(users)


def parse_subordinate_ids(output: str) -> IDRange:
    """Read what getsubids prints: `0: kubelet 65536 2147483648`. Raises UserNamespaceError."""
    lines = output.strip("\n").split("\n")
    if len(lines) != 1:
        raise UserNamespaceError(f'kubelet mappings: error parsing line "{output}": it must contain only one line')
    words = lines[0].split()
    if len(words) != 4:
        raise UserNamespaceError(f'kubelet mappings: invalid line "{output}"')
    numbers = [int(word) if word.isascii() and word.isdecimal() else -1 for word in words[2:]]
    if any(not 0 <= number < _ALL_IDS for number in numbers):
        raise UserNamespaceError(
            f'kubelet mappings: error parsing line "{output}": expected two numbers below {_ALL_IDS} after the name'
        )
    return IDRange(*numbers)


async def _ask(*command: str, kind: str) -> str:
    problem = ""
    with trio.move_on_after(_TIMEOUT) as timeout:
        try:
            done = await run_program(command, env=os.environ, most_stdout=_MAX_ANSWER, most_stderr=_MAX_STDERR)
        except (OSError, TooMuchOutputError) as error:
            problem = str(error)
        else:
            if done.code == 0:
                return done.stdout.decode(errors="replace")
            problem = f"{done.ending}: {done.stderr.decode(errors='replace').strip()}"
    if timeout.cancelled_caught:
        problem = f"no answer within {_TIMEOUT:g} seconds"
    raise UserNamespaceError(
        f'kubelet mappings: error retrieving additional {kind} for user "{command[-1]}": {problem}'
    )


def _check_ability(handler: str, abilities: RuntimeAbilities) -> None:
    """Raises UserNamespaceError when the runtime has no user namespaces for this handler."""
    if abilities.handler(handler).user_namespaces:
        return
    problem = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    if handler:
        problem = (
            f'can\'t set `spec.hostUsers: false`, RuntimeClass handler "{handler}" does not support user namespaces'
        )
    if abilities.handlers and handler not in abilities.handlers:
        problem += f': the handler "{handler}" is not known'
    raise UserNamespaceError(problem)


def _parse_record(text: str) -> _Mapping:
    """Raises UserNamespaceError unless users and groups have one and the same mapping, of root."""
    try:
        record = json.loads(text)
        users, groups = ([_read_mapping(one) for one in record[key] or ()] for key in ("uidMappings", "gidMappings"))
    except (ValueError, KeyError, TypeError) as error:
        raise UserNamespaceError(f"invalid user namespace mappings file: {error!r}") from None
    if len(users) != 1:
        raise UserNamespaceError("invalid user namespace configuration: no more than one mapping allowed.")
    if len(groups) != 1:
        raise UserNamespaceError("invalid user namespace configuration: GID and UID mappings should be identical.")
    if users != groups:
        raise UserNamespaceError("invalid user namespace configuration: GID and UID mapping should be identical")
    if users[0].container_id:
        raise UserNamespaceError("invalid user namespace configuration: UID 0 must be mapped")
    return users[0]


def _read_mapping(one: dict[str, Any]) -> _Mapping:
    numbers = [one[key] for key in ("hostId", "containerId", "length")]
    if any(type(number) is not int or not 0 <= number < _ALL_IDS for number in numbers):
        raise ValueError(f"expected numbers from 0 to {_ALL_IDS - 1}, not {numbers}")
    return _Mapping(*numbers)
