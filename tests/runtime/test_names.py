"""Hashes, labels, log paths, image names and wording: what others read and compare with."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import (
    Container,
    ContainerPort,
    ExecAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    ObjectMeta,
    Pod,
    PodSpec,
)
from trikubelet.cgroups.ownership import Ownership
from trikubelet.container.hashing import hash_container
from trikubelet.container.labels import (
    ContainerRecord,
    PodIdentity,
    container_annotations,
    container_labels,
    owned_by,
    read_container_record,
    read_identity,
    sandbox_annotations,
    sandbox_labels,
)
from trikubelet.container.messages import describe_duration
from trikubelet.formats.hashing import fnv1a_32, fnv1a_64, go_json_string
from trikubelet.formats.image_names import ImageName, InvalidImageNameError, parse_image_name, with_default_tag
from trikubelet.rpc.cri import v1
from trikubelet.runtime.logs.paths import (
    container_id_of_symlink,
    legacy_symlink_name,
    pod_uid_of_directory,
    restart_count_from_log_names,
)

POD = Pod(
    metadata=ObjectMeta(
        name="test_pod",
        namespace="test_pod_namespace",
        uid="test_pod_uid",
        labels={"foo": "bar", "io.kubernetes.pod.name": "a lie"},
        annotations={"note": "kept"},
        deletion_grace_period_seconds=10,
    ),
    spec=PodSpec(termination_grace_period_seconds=10),
)
CONTAINER = Container(
    name="test_container",
    image="foo/image:v1",
    termination_message_path="/somepath",
    termination_message_policy="File",
    ports=(ContainerPort(name="http", container_port=80, protocol="TCP"),),
    lifecycle=Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=("action1", "a<b")))),
)


@pytest.mark.parametrize(
    ("name", "image", "value"), [("test_container", "foo/image:v1", 0x8E45CBD0), ("foo", "bar", 0x11A6D6D6)]
)
def test_a_containers_hash_is_the_kubelets(name: str, image: str, value: int) -> None:
    assert hash_container(Container(name=name, image=image, command=("not", "hashed"))) == value


def test_fnv_1a_is_fnv_1a() -> None:
    assert fnv1a_32(b"foobar") == 0xBF9CF968
    assert fnv1a_64(b"foobar") == 0x85944171F73967E8


def test_json_strings_are_escaped_as_go_escapes_them() -> None:
    assert go_json_string('a"\\<>&\u2028\x01\n\x7fé') == '"a\\"\\\\\\u003c\\u003e\\u0026\\u2028\\u0001\\n\x7fé"'


def test_a_sandbox_carries_the_pods_labels_and_its_identity() -> None:
    assert sandbox_labels(POD) == {
        "foo": "bar",
        "io.kubernetes.pod.name": "test_pod",
        "io.kubernetes.pod.namespace": "test_pod_namespace",
        "io.kubernetes.pod.uid": "test_pod_uid",
    }
    assert sandbox_annotations(POD) == {"note": "kept"}


def test_a_container_is_labelled_with_its_pod_and_name() -> None:
    labels = container_labels(CONTAINER, POD)
    assert labels["io.kubernetes.container.name"] == "test_container"
    assert "foo" not in labels
    assert read_identity(labels) == PodIdentity("test_pod_uid", "test_pod", "test_pod_namespace")


def test_a_containers_annotations_are_written_as_the_kubelet_writes_them() -> None:
    assert container_annotations(CONTAINER, POD, 5) == {
        "io.kubernetes.container.hash": "8e45cbd0",
        "io.kubernetes.container.restartCount": "5",
        "io.kubernetes.container.terminationMessagePath": "/somepath",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.deletionGracePeriod": "10",
        "io.kubernetes.pod.terminationGracePeriod": "10",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["action1","a\\u003cb"]}}',
        "io.kubernetes.container.ports": '[{"name":"http","containerPort":80,"protocol":"TCP"}]',
    }


@pytest.mark.parametrize(
    ("owner", "uid", "alone", "in_cluster"),
    [
        ("/root/folder", "new", True, True),
        ("/another", "older", False, False),
        ("", "new", False, True),
        ("", "older", True, True),
        ("", "", False, True),
    ],
)
def test_sandboxes_and_containers_carry_the_mark_of_their_owner(
    owner: str, uid: str, alone: bool, in_cluster: bool
) -> None:
    """The kubelet copies a pod's annotations, too, which are no marks of this agent's."""
    pod = attrs.evolve(POD, metadata=attrs.evolve(POD.metadata, uid=uid))
    entries = (
        v1.PodSandbox(metadata=v1.PodSandboxMetadata(uid=uid), annotations=sandbox_annotations(pod, owner)),
        v1.Container(
            labels=container_labels(CONTAINER, pod), annotations=container_annotations(CONTAINER, pod, 0, owner)
        ),
    )
    ownership = Ownership(mark="/root/folder", alone=True, earlier=frozenset({"older"}))
    assert [owned_by(ownership, entry) for entry in entries] == [alone, alone]
    assert [owned_by(attrs.evolve(ownership, alone=False), entry) for entry in entries] == [in_cluster, in_cluster]


def test_what_annotations_say_is_read_back() -> None:
    record = read_container_record(container_annotations(CONTAINER, POD, 5))
    assert CONTAINER.lifecycle is not None
    assert record == ContainerRecord(
        hash=0x8E45CBD0,
        restart_count=5,
        termination_message_path="/somepath",
        termination_message_policy="File",
        deletion_grace_period=10,
        termination_grace_period=10,
        pre_stop=CONTAINER.lifecycle.pre_stop,
        ports=CONTAINER.ports,
    )


def test_an_http_handler_with_a_named_port_is_read_back() -> None:
    handler = LifecycleHandler(http_get=HTTPGetAction(path="/stop", port="web"))
    container = attrs.evolve(CONTAINER, lifecycle=Lifecycle(pre_stop=handler))
    assert read_container_record(container_annotations(container, POD, 0)).pre_stop == handler


@pytest.mark.parametrize("broken", ["", "{", "[]", "nonsense", '{"exec":3}', "[3]"])
def test_unreadable_annotations_count_as_missing(broken: str) -> None:
    annotations = dict.fromkeys(container_annotations(CONTAINER, POD, 5), broken)
    record = read_container_record(annotations)
    assert (record.hash, record.restart_count, record.pre_stop, record.ports) == (0, 0, None, ())


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["0.log.rotated-log"], 1),
        (["0.log"], 1),
        (["0.log", "1.log", "2.log"], 3),
        (["5.log.rotated", "6.log.rotated"], 7),
        (["5.log.rotated", "6.log", "7.log"], 8),
        ([], 0),
        (["a.log.rotated", "b.log.rotated", "12log.rotated"], 0),
        (["145.log.log.rotated"], 146),
        (["92233720368547758089223372036854775808.log.rotated"], 0),
        (["9223372036854775808.log.rotated", "23.log", "23a.log", "1aaa.log.rotated", "2.log"], 24),
        (["rotated.23.log"], 0),
        (["mylog42.log"], 0),
        (["-42.log"], 0),
        (["6.log", "6.log.rotated", "6.log.rotated.rotated"], 7),
    ],
)
def test_restart_counts_are_recovered_from_log_names(names: list[str], count: int) -> None:
    assert restart_count_from_log_names(names) == count


def test_a_legacy_link_is_cut_to_a_file_name_and_its_id_found_again() -> None:
    assert legacy_symlink_name("80a017fc", "test", "pod", "ns") == "pod_ns_test-80a017fc.log"
    assert container_id_of_symlink("pod_ns_test-80a017fc.log") == "80a017fc"
    assert container_id_of_symlink("pod_ns_test-80a01.log") is None
    assert container_id_of_symlink("pod_ns_test-80a017fc") is None
    long = legacy_symlink_name("f" * 64, "c" * 63, "p" * 253, "n" * 63)
    assert len(long) == 255
    assert long.endswith(".log")


def test_the_uid_of_a_log_directory_is_its_last_part() -> None:
    assert pod_uid_of_directory("default_web_1234-5678") == "1234-5678"
    assert pod_uid_of_directory("1234-5678") == "1234-5678"


SHA = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("root", "root:latest"),
        ("root:tag", "root:tag"),
        (f"root@{SHA}", f"root@{SHA}"),
        (f"root:latest@{SHA}", f"root:latest@{SHA}"),
        ("root:latest", "root:latest"),
        ("localhost/host", "localhost/host:latest"),
        ("registry:5000/a/b", "registry:5000/a/b:latest"),
    ],
)
def test_a_missing_tag_is_latest(image: str, full: str) -> None:
    assert with_default_tag(image) == full


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", ImageName("docker.io/library/busybox", "latest", "")),
        ("index.docker.io/foo", ImageName("docker.io/library/foo", "latest", "")),
        ("foo/bar:1", ImageName("docker.io/foo/bar", "1", "")),
        ("gcr.io/a/b", ImageName("gcr.io/a/b", "latest", "")),
        ("localhost/host", ImageName("localhost/host", "latest", "")),
        (f"busybox@{SHA}", ImageName("docker.io/library/busybox", "", SHA)),
        ("[2001:db8::1]:80/a", ImageName("[2001:db8::1]:80/a", "latest", "")),
    ],
)
def test_image_names_are_completed(image: str, name: ImageName) -> None:
    assert parse_image_name(image) == name


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("", "invalid reference format"),
        ("FOO", "invalid reference format: repository name (library/FOO) must be lowercase"),
        ("a b", "invalid reference format"),
        ("foo:", "invalid reference format"),
        ("foo@sha256:12", "invalid reference format"),
        ("a" * 64, f"invalid repository name ({'a' * 64}), cannot specify 64-byte hexadecimal strings"),
        ("x/" + "a" * 260, "repository name must not be more than 255 characters"),
    ],
)
def test_bad_image_names_are_refused_with_the_known_words(image: str, problem: str) -> None:
    with pytest.raises(InvalidImageNameError) as caught:
        parse_image_name(image)
    assert str(caught.value) == f'couldn\'t parse image name "{image}": {problem}'


@given(st.text(max_size=40))
def test_any_text_is_an_image_name_or_refused(text: str) -> None:
    try:
        full = with_default_tag(text)
    except InvalidImageNameError:
        return
    assert parse_image_name(full) == parse_image_name(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.85, "850ms"),
        (10, "10s"),
        (1.5, "1.5s"),
        (80, "1m20s"),
        (160, "2m40s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (12.3456, "12.345s"),
    ],
)
def test_durations_read_as_go_writes_them(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text
