"""What we rely on in the generated messages."""

from __future__ import annotations

import warnings

import pytest

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.list_entries import ListedContainer, ListedSandbox


def test_the_services_keep_their_routes() -> None:
    runtime = v1.RuntimeServiceBase().__mapping__()
    images = v1.ImageServiceBase().__mapping__()
    assert "/runtime.v1.RuntimeService/RunPodSandbox" in runtime
    assert "/runtime.v1.ImageService/PullImage" in images
    assert (len(runtime), len(images)) == (35, 6)


def test_a_number_that_was_set_to_zero_is_sent() -> None:
    root = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=0))
    nobody = v1.LinuxContainerSecurityContext()
    assert bytes(root) == b"\x2a\x00"
    assert bytes(nobody) == b""


def test_ordinary_use_of_messages_with_deprecated_fields_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = v1.LinuxContainerSecurityContext(privileged=True, seccomp=v1.SecurityProfile())
        parsed = v1.LinuxContainerSecurityContext.FromString(bytes(context))
        v1.LinuxSandboxSecurityContext(privileged=True)
        v1.AuthConfig(username="me")
    assert parsed.privileged
    with pytest.warns(DeprecationWarning, match="seccomp_profile_path"):
        v1.LinuxContainerSecurityContext(seccomp_profile_path="x")


def test_enums_are_numbers_with_names() -> None:
    state = v1.Container.FromString(b"\x30\x01").state
    assert state is v1.ContainerState.CONTAINER_RUNNING
    assert (state.value, state.name) == (1, "CONTAINER_RUNNING")


def test_listed_entries_are_serialised_once_and_like_the_ordinary_ones() -> None:
    listed = ListedContainer(id="c", labels={"a": "b"}, metadata=v1.ContainerMetadata(name="main"))
    plain = v1.Container(id="c", labels={"a": "b"}, metadata=v1.ContainerMetadata(name="main"))
    assert bytes(listed) == bytes(plain)
    assert bytes(listed) is bytes(listed)
    sandboxes = v1.ListPodSandboxResponse(items=[ListedSandbox(id="s")])
    assert bytes(sandboxes) == bytes(v1.ListPodSandboxResponse(items=[v1.PodSandbox(id="s")]))
