"""What flexVolume drivers answer, and what they are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import FlexVolumeSource, pod_from_dict
from trikubelet.volumes.flex.answers import (
    Answer,
    AnswerError,
    Capabilities,
    NotSupportedError,
    options,
    parse_answer,
    pod_options,
)


def parsed(**values: Any) -> Answer:
    return parse_answer("mount", json.dumps({"status": "Success", **values}).encode())


def test_a_driver_that_does_not_say_can_all_but_metrics() -> None:
    found = parse_answer("init", b'{"status": "Success"}')
    assert found == Answer()
    assert found.capabilities == Capabilities(
        attach=True, selinux_relabel=True, supports_metrics=False, fs_group=True, requires_fs_resize=True
    )


def test_a_driver_says_what_it_can_in_any_case_of_letters() -> None:
    told = {"attach": False, "SELinuxRelabel": False, "supportsMetrics": True, "fsgroup": False, "other": 1}
    assert parsed(Capabilities={**told, "requiresFSResize": None}).capabilities == Capabilities(
        attach=False, selinux_relabel=False, supports_metrics=True, fs_group=False
    )
    assert parsed(capabilities=None).capabilities == Capabilities()


def test_an_answer_may_have_a_device() -> None:
    assert parsed(device="/dev/sdx", message="done", attached=True, volumeName="x", volumeNewSize=7) == Answer(
        "done", "/dev/sdx", attached=True
    )


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b'{"status": "Failure", "message": "no"}', "mount command failed, status: Failure, reason: no"),
        (b'{"message": "no"}', "mount command failed, status: , reason: no"),
        (b"null", "expected an answer in JSON"),
        (b"[]", "expected an answer in JSON"),
        (b"", "expected an answer in JSON"),
        (b'{"status": "Success"} more', "expected an answer in JSON"),
        (b"\xff\xfe", "expected an answer in JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"status": ' + b"9" * 5000 + b"}", "expected an answer in JSON"),
        (b'{"status": "Success", "device": 7}', "expected a text for device, got '7'"),
        (b'{"status": "Success", "attached": "yes"}', "expected true or false for attached, got 'yes'"),
        (b'{"status": "Success", "capabilities": []}', "expected an object of capabilities"),
        (b'{"status": "Success", "capabilities": {"attach": 1}}', "expected true or false for the capability attach"),
    ],
)
def test_what_is_no_answer_is_refused(output: bytes, text: str) -> None:
    with pytest.raises(AnswerError, match=text):
        parse_answer("mount", output)


def test_a_command_may_be_left_to_the_agent() -> None:
    with pytest.raises(NotSupportedError):
        parse_answer("mount", b'{"status": "Not supported"}')


@pytest.mark.fuzz
@given(st.one_of(st.binary(), st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(json.dumps)))
def test_nothing_that_a_driver_prints_does_harm(output: bytes | str) -> None:
    raw = output if isinstance(output, bytes) else output.encode()
    told = ""
    try:
        parse_answer("mount", raw)
    except AnswerError as error:
        told = str(error)
    assert 0 < len(told) < 5000, "it is no answer"


@pytest.mark.parametrize(("read_only", "expected"), [(False, "rw"), (True, "ro")])
def test_a_driver_is_told_what_the_volume_says(read_only: bool, expected: str) -> None:
    source = FlexVolumeSource(driver="x", fs_type="ext4", options={"share": "a", "kubernetes.io/pod.uid": "forged"})
    told = options(source, "data", read_only=read_only, more={"kubernetes.io/pod.uid": "uid-1"})
    assert json.loads(told) == {
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": expected,
        "kubernetes.io/pvOrVolumeName": "data",
        "share": "a",
        "kubernetes.io/pod.uid": "uid-1",
    }


@pytest.mark.parametrize(("group", "more"), [(None, {}), (42, {"kubernetes.io/mounterArgs.FsGroup": "42"})])
def test_a_driver_is_told_whose_volume_it_is(group: int | None, more: dict[str, str]) -> None:
    pod = pod_from_dict(
        {
            "metadata": {"name": "my-pod", "namespace": "my-ns", "uid": "my-uid"},
            "spec": {"serviceAccountName": "my-sa", "containers": []},
        }
    )
    assert pod_options(pod, group, {"key": b"geheim"}) == {
        "kubernetes.io/pod.name": "my-pod",
        "kubernetes.io/pod.namespace": "my-ns",
        "kubernetes.io/pod.uid": "my-uid",
        "kubernetes.io/serviceAccount.name": "my-sa",
        "kubernetes.io/secret/key": "Z2VoZWlt",
        **more,
    }
