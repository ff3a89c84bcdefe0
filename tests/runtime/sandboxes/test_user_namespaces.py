"""Ids for pods with users of their own: given, kept over restarts, taken back."""

from __future__ import annotations

import json
import pwd
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import ObjectMeta, Pod, PodSpec
from trikubelet.container.abilities import HandlerAbilities, RuntimeAbilities
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri import v1
from trikubelet.runtime.options import IDRange, RuntimeOptions
from trikubelet.runtime.sandboxes.user_namespaces import (
    UserNamespaceError,
    UserNamespaces,
    check_range,
    id_range_of_node,
    parse_subordinate_ids,
    whole_range,
)

ABLE = RuntimeAbilities(handlers={"": HandlerAbilities(user_namespaces=True), "old": HandlerAbilities()})
BLOCK = 65_536


def options(root: Path, **more: Any) -> RuntimeOptions:
    return RuntimeOptions(root_dir=root, machine=MachineFacts(2**30), **more)


def pod(uid: str = "a", *, host_users: bool | None = False) -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="default", uid=uid), spec=PodSpec(host_users=host_users))


def first_id(spaces: UserNamespaces, uid: str) -> int:
    made = spaces.for_pod(pod(uid), abilities=ABLE)
    [users], [groups] = made.uids, made.gids
    assert users == groups
    assert users.container_id == 0
    return users.host_id


def record(root: Path, uid: str) -> Path:
    return root / "pods" / uid / "userns"


def mapping(host: int, length: int = BLOCK, container: int = 0) -> dict[str, int]:
    return {"hostId": host, "containerId": container, "length": length}


def put_record(root: Path, uid: str, text: str) -> None:
    record(root, uid).parent.mkdir(parents=True, exist_ok=True)
    record(root, uid).write_text(text)


@pytest.mark.parametrize("host_users", [None, True])
def test_a_pod_that_does_not_ask_has_the_nodes_users(tmp_path: Path, host_users: bool | None) -> None:
    made = UserNamespaces(options(tmp_path)).for_pod(pod(host_users=host_users))
    assert made == v1.UserNamespace(mode=v1.NamespaceMode.NODE)
    assert not (tmp_path / "pods").exists()


def test_a_pod_that_asks_gets_a_block_which_is_written_down(tmp_path: Path) -> None:
    made = UserNamespaces(options(tmp_path)).for_pod(pod(), abilities=ABLE)
    ids = v1.IdMapping(host_id=BLOCK, container_id=0, length=BLOCK)
    assert made == v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=[ids], gids=[ids])
    assert record(tmp_path, "a").read_text() == (
        '{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],'
        '"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}'
    )
    assert record(tmp_path, "a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in record(tmp_path, "a").parent.iterdir()] == ["userns"]


def test_blocks_are_as_long_as_configured(tmp_path: Path) -> None:
    made = UserNamespaces(options(tmp_path, ids_per_pod=2 * BLOCK)).for_pod(pod(), abilities=ABLE)
    assert (made.uids[0].host_id, made.uids[0].length) == (2 * BLOCK, 2 * BLOCK)


def test_a_pod_keeps_its_ids_and_no_other_gets_them(tmp_path: Path) -> None:
    spaces = UserNamespaces(options(tmp_path))
    assert first_id(spaces, "a") == first_id(spaces, "a")
    assert first_id(spaces, "a") != first_id(spaces, "b")


def test_an_agent_that_starts_again_keeps_what_was_given(tmp_path: Path) -> None:
    before = UserNamespaces(options(tmp_path))
    given = {uid: first_id(before, uid) for uid in "abc"}
    before.release("b")
    (tmp_path / "pods" / "plain").mkdir()
    after = UserNamespaces(options(tmp_path))
    after.adopt()
    assert after.statistics()["used"] == 2
    assert first_id(after, "d") not in (given["a"], given["c"])
    assert first_id(after, "c") == given["c"]


def test_what_was_given_is_known_even_when_nobody_adopted_it(tmp_path: Path) -> None:
    first = first_id(UserNamespaces(options(tmp_path)), "a")
    assert first_id(UserNamespaces(options(tmp_path)), "b") != first


def test_a_record_that_went_with_its_directory_is_written_again(tmp_path: Path) -> None:
    spaces = UserNamespaces(options(tmp_path))
    first = first_id(spaces, "a")
    record(tmp_path, "a").unlink()
    record(tmp_path, "a").parent.rmdir()
    assert first_id(spaces, "a") == first
    assert json.loads(record(tmp_path, "a").read_text())["uidMappings"] == [mapping(first)]


def test_released_ids_are_given_again_but_last(tmp_path: Path) -> None:
    spaces = UserNamespaces(options(tmp_path, user_ids=IDRange(BLOCK, 3 * BLOCK), max_pods=3))
    first = first_id(spaces, "a")
    spaces.release("a")
    spaces.release("a")
    assert not record(tmp_path, "a").exists()
    assert [first_id(spaces, uid) for uid in "bcd"][-1] == first


def test_when_all_blocks_are_given_the_next_pod_is_told(tmp_path: Path) -> None:
    spaces = UserNamespaces(options(tmp_path, user_ids=IDRange(4 * BLOCK, 2 * BLOCK), max_pods=2))
    assert {first_id(spaces, "a"), first_id(spaces, "b")} == {4 * BLOCK, 5 * BLOCK}
    with pytest.raises(UserNamespaceError) as caught:
        spaces.for_pod(pod("c"), abilities=ABLE)
    assert str(caught.value) == ("create user namespace: could not find an empty slot to allocate a user namespace")
    assert not record(tmp_path, "c").exists()
    spaces.release("b")
    assert first_id(spaces, "c") == 5 * BLOCK


@pytest.mark.parametrize("adopted", [True, False])
def test_ids_of_pods_that_are_gone_are_taken_back(tmp_path: Path, adopted: bool) -> None:
    before = UserNamespaces(options(tmp_path))
    for uid in "abc":
        first_id(before, uid)
    after = UserNamespaces(options(tmp_path))
    if adopted:
        after.adopt()
    after.release_others({"b", "unknown"})
    assert [uid for uid in "abc" if record(tmp_path, uid).exists()] == ["b"]
    after.adopt()
    assert after.statistics() == {"used": 1, "blocks": 65_535}


@pytest.mark.parametrize(
    ("handler", "abilities", "problem"),
    [
        ("", RuntimeAbilities(), "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        (
            "old",
            RuntimeAbilities(),
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "old" does not support user namespaces',
        ),
        (
            "old",
            ABLE,
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "old" does not support user namespaces',
        ),
        (
            "new",
            ABLE,
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "new" does not support user namespaces: '
            'the handler "new" is not known',
        ),
    ],
)
def test_a_runtime_that_cannot_is_named(
    tmp_path: Path, handler: str, abilities: RuntimeAbilities, problem: str
) -> None:
    with pytest.raises(UserNamespaceError) as caught:
        UserNamespaces(options(tmp_path)).for_pod(pod(), handler, abilities)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("users", "groups", "problem"),
    [
        ([mapping(2 * BLOCK, 0)], [mapping(2 * BLOCK, 0)], "wrong user namespace length 0"),
        ([mapping(BLOCK + 1)], [mapping(BLOCK + 1)], "wrong user namespace offset specified 65537"),
        ([mapping(0)], [mapping(0)], "id 0 is out of range"),
        ([mapping(2 * BLOCK)], [mapping(1)], "GID and UID mapping should be identical"),
        ([mapping(2 * BLOCK)], [mapping(2 * BLOCK), mapping(3 * BLOCK)], "GID and UID mappings should be identical."),
        ([mapping(2 * BLOCK), mapping(3 * BLOCK)], [mapping(2 * BLOCK)], "no more than one mapping allowed."),
        ([], [], "no more than one mapping allowed."),
        ([mapping(BLOCK, container=1)], [mapping(BLOCK, container=1)], "UID 0 must be mapped"),
        ([mapping(BLOCK)], [mapping(BLOCK)], 'range picked for pod "b" already taken'),
        ([mapping(-BLOCK)], [mapping(-BLOCK)], "invalid user namespace mappings file"),
        ([mapping(2**32)], [mapping(2**32)], "invalid user namespace mappings file"),
        ([{"hostId": True, "containerId": 0, "length": BLOCK}], [], "invalid user namespace mappings file"),
        (["x"], [], "invalid user namespace mappings file"),
    ],
)
def test_records_that_no_agent_wrote_are_refused_by_name(
    tmp_path: Path, users: list[Any], groups: list[Any], problem: str
) -> None:
    put_record(tmp_path, "a", json.dumps({"uidMappings": [mapping(BLOCK)], "gidMappings": [mapping(BLOCK)]}))
    put_record(tmp_path, "b", json.dumps({"uidMappings": users, "gidMappings": groups}))
    spaces = UserNamespaces(options(tmp_path))
    with pytest.raises(UserNamespaceError) as caught:
        spaces.adopt()
    assert str(caught.value).startswith('record pod mappings for existing pod "b": ')
    assert problem in str(caught.value)
    assert str(record(tmp_path, "b")) in str(caught.value)


@given(st.one_of(st.text(max_size=30), st.recursive(st.integers() | st.text(), st.lists).map(json.dumps)))
def test_any_other_text_is_refused_too(text: str) -> None:
    with TemporaryDirectory() as folder:
        put_record(Path(folder), "a", text)
        if not text:
            return
        with pytest.raises(UserNamespaceError, match="invalid user namespace"):
            UserNamespaces(options(Path(folder))).adopt()


def test_a_bad_record_stops_further_giving_until_it_is_gone(tmp_path: Path) -> None:
    put_record(tmp_path, "b", "{")
    spaces = UserNamespaces(options(tmp_path))
    with pytest.raises(UserNamespaceError, match="existing pod"):
        spaces.for_pod(pod(), abilities=ABLE)
    assert spaces.for_pod(pod(host_users=None)).mode == v1.NamespaceMode.NODE
    spaces.release_others({"a"})
    assert first_id(spaces, "a") == BLOCK


@pytest.mark.parametrize("left", ["", "\0" * 100])
def test_a_record_that_a_power_cut_has_emptied_is_none(tmp_path: Path, left: str) -> None:
    put_record(tmp_path, "a", left)
    assert first_id(UserNamespaces(options(tmp_path)), "a") == BLOCK
    assert record(tmp_path, "a").read_text()


def test_a_record_that_cannot_be_written_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods" / "a").write_text("in the way")
    spaces = UserNamespaces(options(tmp_path))
    with pytest.raises(UserNamespaceError, match=r"^create user namespace: "):
        spaces.for_pod(pod(), abilities=ABLE)
    assert spaces.statistics()["used"] == 0


@pytest.mark.parametrize(
    ("ids", "size", "pods", "problem"),
    [
        (whole_range(BLOCK), BLOCK, 110, None),
        (whole_range(2 * BLOCK), 2 * BLOCK, 110, None),
        (IDRange(BLOCK + 1, BLOCK), BLOCK, 1, "kubelet user assigned ID 65537 is not a multiple of 65536"),
        (IDRange(0, BLOCK), BLOCK, 1, "kubelet user assigned ID 0 must be greater or equal to 65536"),
        (IDRange(1, BLOCK), BLOCK, 1, "kubelet user assigned ID 1 is not a multiple of 65536"),
        (
            IDRange(BLOCK, BLOCK + 1),
            BLOCK,
            1,
            "kubelet user assigned IDs length 65537 is not a multiple of 65536",
        ),
        (IDRange(BLOCK, BLOCK), BLOCK, 2, "kubelet user assigned IDs are not enough to support 2 pods"),
        (IDRange(BLOCK, BLOCK), 100, 1, "kubelet user namespace length 100 is not a multiple of 65536"),
    ],
)
def test_the_nodes_ids_must_fit(tmp_path: Path, ids: IDRange, size: int, pods: int, problem: str | None) -> None:
    told = options(tmp_path, user_ids=ids, ids_per_pod=size, max_pods=pods)
    if problem is None:
        check_range(ids, size, pods)
        assert UserNamespaces(told).statistics()["blocks"] == ids.length // size
        return
    with pytest.raises(UserNamespaceError) as caught:
        UserNamespaces(told)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "output",
    [
        "0: kubelet 1 2\n1: kubelet 3 4\n",
        "0: kubelet 65536",
        "0: kubelet Foo 65536",
        "0: kubelet 0 Bar",
        "0: kubelet 4294967296 2147483648",
        "0: kubelet 65536 4294967296",
        "0: kubelet -1 2147483648",
        "0: kubelet 65536 -1",
        "",
    ],
)
def test_what_getsubids_does_not_print_is_refused(output: str) -> None:
    with pytest.raises(UserNamespaceError, match=r"^kubelet mappings: "):
        parse_subordinate_ids(output)


def test_what_getsubids_prints_is_read() -> None:
    assert parse_subordinate_ids("0: kubelet 65536 2147483648\n") == IDRange(65_536, 2_147_483_648)


@pytest.fixture
def getsubids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A getsubids to be written, for the user that runs the test."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "getsubids"


MY_NAME = pwd.getpwuid(0).pw_name


def write_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_the_ids_set_aside_for_the_user_are_taken(getsubids: Path) -> None:
    write_tool(getsubids, 'for name; do :; done; echo "0: $name 131072 655360"')
    assert await id_range_of_node(BLOCK, MY_NAME) == IDRange(131_072, 655_360)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ('echo "0: root $# 655360"', f'kubelet mappings: mismatched subuids and subgids for user "{MY_NAME}"'),
        (
            "echo down >&2; exit 3",
            f'kubelet mappings: error retrieving additional uids for user "{MY_NAME}": exit status 3: down',
        ),
        (
            '[ "$1" = -g ] && exit 1; echo "0: root 65536 65536"',
            f'kubelet mappings: error retrieving additional gids for user "{MY_NAME}": exit status 1: ',
        ),
        (
            "while :; do echo 0: root 65536 65536; done",
            f'kubelet mappings: error retrieving additional uids for user "{MY_NAME}": '
            "it was killed, since it printed more than 65536 bytes",
        ),
    ],
)
async def test_a_user_whose_ids_cannot_be_told_is_an_error(getsubids: Path, script: str, problem: str) -> None:
    write_tool(getsubids, script)
    with pytest.raises(UserNamespaceError) as caught:
        await id_range_of_node(BLOCK, MY_NAME)
    assert str(caught.value) == problem


async def test_without_the_user_or_the_tool_pods_may_have_all_ids(getsubids: Path) -> None:
    assert await id_range_of_node(BLOCK, MY_NAME) == whole_range(BLOCK)
    write_tool(getsubids, "exit 1")
    assert await id_range_of_node(BLOCK, "nobody-by-this-name") == IDRange(BLOCK, 2**32 - BLOCK)


def test_all_pods_of_a_full_node_have_ids_of_their_own(tmp_path: Path) -> None:
    told = attrs.evolve(options(tmp_path), user_ids=IDRange(BLOCK, 110 * BLOCK))
    spaces = UserNamespaces(told)
    given = [first_id(spaces, str(number)) for number in range(110)]
    assert sorted(given) == [BLOCK * (number + 1) for number in range(110)]
