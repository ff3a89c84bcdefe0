"""What was asked for, as files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.api import (
    ClusterTrustBundleProjection,
    ConfigMap,
    DownwardAPIVolumeFile,
    KeyToPath,
    ObjectFieldSelector,
    PodCertificateProjection,
    Quantity,
    ResourceFieldSelector,
    Secret,
    ServiceAccountTokenProjection,
    pod_from_dict,
)
from trikubelet.kube_client.volume_objects import CertificateAndKey, Token
from trikubelet.volumes.payload.downward import downward_payload
from trikubelet.volumes.payload.files import PayloadError, PayloadFile
from trikubelet.volumes.payload.objects import config_map_payload, secret_payload
from trikubelet.volumes.payload.projected import Readers, certificate_payload, token_payload, trust_bundle_payload

if TYPE_CHECKING:
    from trikubelet.volumes.payload.files import Payload

CONFIG = ConfigMap(data={"text": "täxt"}, binary_data={"bin": b"\xff\0"})
SECRET = Secret(data={"user": b"me", "pw": b"\xff"})


def contents(payload: Payload) -> dict[str, bytes]:
    return {path: file.data for path, file in payload.items()}


def modes(payload: Payload) -> dict[str, int]:
    return {path: file.mode for path, file in payload.items()}


def items(*triples: tuple[str, str, int | None]) -> tuple[KeyToPath, ...]:
    return tuple(KeyToPath(key=key, path=path, mode=mode) for key, path, mode in triples)


def test_every_key_of_a_config_map_is_a_file() -> None:
    payload = config_map_payload(CONFIG, (), default_mode=0o644, optional=False)
    assert contents(payload) == {"text": "täxt".encode(), "bin": b"\xff\0"}
    assert set(modes(payload).values()) == {0o644}


def test_items_choose_keys_paths_and_modes() -> None:
    chosen = items(("text", "d/a", None), ("bin", "b", 0o400), ("text", "b2", 0))
    payload = config_map_payload(CONFIG, chosen, default_mode=0o640, optional=False)
    assert contents(payload) == {"d/a": "täxt".encode(), "b": b"\xff\0", "b2": "täxt".encode()}
    assert modes(payload) == {"d/a": 0o640, "b": 0o400, "b2": 0}


def test_of_two_items_with_one_path_the_later_is_taken() -> None:
    payload = secret_payload(SECRET, items(("user", "a", None), ("pw", "a", None)), default_mode=0o644, optional=False)
    assert contents(payload) == {"a": b"\xff"}


def test_a_key_that_is_not_there_is_an_error_unless_optional() -> None:
    wanted = items(("text", "a", None), ("no", "b", None))
    with pytest.raises(PayloadError, match=r"^configmap references non-existent config key: no$"):
        config_map_payload(CONFIG, wanted, default_mode=0o644, optional=False)
    assert list(config_map_payload(CONFIG, wanted, default_mode=0o644, optional=True)) == ["a"]
    with pytest.raises(PayloadError, match=r"^references non-existent secret key: no$"):
        secret_payload(SECRET, items(("no", "b", None)), default_mode=0o644, optional=False)
    assert secret_payload(SECRET, items(("no", "b", None)), default_mode=0o644, optional=True) == {}


def test_an_optional_object_that_is_not_there_is_empty() -> None:
    assert config_map_payload(None, items(("a", "b", None)), default_mode=0o644, optional=True) == {}
    assert secret_payload(None, (), default_mode=0o644, optional=True) == {}


def test_a_pod_without_its_defaults_is_refused() -> None:
    problem = "no defaultMode used, not even the default value for it"
    with pytest.raises(PayloadError, match=problem):
        config_map_payload(CONFIG, (), default_mode=None, optional=True)
    with pytest.raises(PayloadError, match=problem):
        secret_payload(SECRET, (), default_mode=None, optional=True)
    with pytest.raises(PayloadError, match=problem):
        downward_payload((), POD, default_mode=None, allocatable={})


def test_no_content_is_in_a_files_text() -> None:
    assert "hunter2" not in repr(PayloadFile(b"hunter2", 0o600))
    assert "hunter2" not in repr(secret_payload(Secret(data={"a": b"hunter2"}), (), default_mode=0, optional=False))


POD = pod_from_dict(
    {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "uid-1",
            "labels": {"b": "2", "a": '<"1">'},
            "annotations": {"Example.org/Note": "x\ny"},
        },
        "spec": {
            "resources": {"limits": {"cpu": "7"}},
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "resources": {
                        "requests": {"cpu": "150m", "memory": "10Mi"},
                        "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"},
                    },
                },
                {"name": "free", "image": "i"},
            ],
        },
    }
)
ALLOCATABLE = {"cpu": Quantity("3500m"), "memory": Quantity("4Gi"), "ephemeral-storage": Quantity("10Gi")}


def field(path: str) -> str:
    item = DownwardAPIVolumeFile(path="f", field_ref=ObjectFieldSelector(field_path=path))
    return downward_payload((item,), POD, default_mode=0o644, allocatable={})["f"].data.decode()


def resource(container: str, name: str, divisor: str = "0") -> str:
    selector = ResourceFieldSelector(container_name=container, resource=name, divisor=Quantity(divisor))
    item = DownwardAPIVolumeFile(path="f", resource_field_ref=selector)
    return downward_payload((item,), POD, default_mode=0o644, allocatable=ALLOCATABLE)["f"].data.decode()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels", 'a="<\\"1\\">"\nb="2"'),
        ("metadata.labels['b']", "2"),
        ("metadata.labels['missing']", ""),
        ("metadata.annotations", 'Example.org/Note="x\\ny"'),
        ("metadata.annotations['Example.org/Note']", "x\ny"),
    ],
)
def test_files_show_the_pods_own_fields(path: str, text: str) -> None:
    assert field(path) == text


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("spec.nodeName", "unsupported fieldPath: spec.nodeName"),
        ("status.podIP", "unsupported fieldPath: status.podIP"),
        ("metadata.name['a']", 'fieldPath "metadata.name" does not support subscript'),
        ("metadata.labels['']", "invalid key subscript in metadata.labels['']: name part must be non-empty"),
    ],
)
def test_files_show_nothing_else(path: str, problem: str) -> None:
    with pytest.raises(PayloadError) as refused:
        field(path)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("container", "name", "divisor", "text"),
    [
        ("main", "requests.cpu", "0", "1"),
        ("main", "requests.cpu", "1m", "150"),
        ("main", "limits.memory", "1Mi", "1024"),
        ("main", "limits.memory", "0", str(2**30)),
        ("main", "limits.hugepages-2Mi", "1Mi", "4"),
        ("free", "limits.hugepages-2Mi", "1Mi", "0"),
        ("free", "requests.memory", "0", "0"),
        ("free", "limits.memory", "1Gi", "4"),
        # What the node can give, not what the pod as a whole may take: that is for variables only.
        ("free", "limits.cpu", "0", "4"),
        ("init", "limits.cpu", "1m", "3500"),
        ("main", "limits.ephemeral-storage", "3Gi", "4"),
    ],
)
def test_files_show_containers_resources(container: str, name: str, divisor: str, text: str) -> None:
    assert resource(container, name, divisor) == text


def test_a_container_has_to_be_named() -> None:
    with pytest.raises(PayloadError, match=r"^container  not found$"):
        resource("", "limits.cpu")
    with pytest.raises(PayloadError, match=r"^unsupported container resource : limits.gpu$"):
        resource("main", "limits.gpu")


def test_all_problems_are_told_each_once() -> None:
    refs = ["spec.a", "metadata.name", "spec.b", "spec.a"]
    wanted = tuple(DownwardAPIVolumeFile(path="f", field_ref=ObjectFieldSelector(field_path=ref)) for ref in refs)
    with pytest.raises(PayloadError) as refused:
        downward_payload(wanted, POD, default_mode=0o644, allocatable={})
    assert str(refused.value) == "[unsupported fieldPath: spec.a, unsupported fieldPath: spec.b]"


def test_an_items_mode_goes_before_the_volumes() -> None:
    ref = ObjectFieldSelector(field_path="metadata.name")
    wanted = (
        DownwardAPIVolumeFile(path="./a//b", field_ref=ref, mode=0o400),
        DownwardAPIVolumeFile(path="c", field_ref=ref),
    )
    assert modes(downward_payload(wanted, POD, default_mode=0o644, allocatable={})) == {"a/b": 0o400, "c": 0o644}


@pytest.mark.parametrize(
    ("user", "group", "mode"), [(None, None, 0o644), (1000, None, 0o600), (0, None, 0o600), (None, 2000, 0o600)]
)
def test_credentials_are_for_the_pods_user_where_it_is_known(user: int | None, group: int | None, mode: int) -> None:
    readers = Readers(0o644, user, group)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    token = token_payload(ServiceAccountTokenProjection(path="t"), Token("secret", now, now), readers)
    bundle = trust_bundle_payload(ClusterTrustBundleProjection(path="ca.pem"), b"pem", readers)
    assert token == {"t": PayloadFile(b"secret", mode, user)}
    assert bundle == {"ca.pem": PayloadFile(b"pem", mode, user)}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ({"credential_bundle_path": "all"}, {"all": b"KEY\nCHAIN\n"}),
        ({"key_path": "k", "certificate_chain_path": "c"}, {"k": b"KEY\n", "c": b"CHAIN\n"}),
        ({"certificate_chain_path": "c"}, {"c": b"CHAIN\n"}),
    ],
)
def test_a_certificate_is_in_the_files_that_were_asked_for(paths: dict[str, Any], expected: dict[str, bytes]) -> None:
    found = CertificateAndKey(b"CHAIN\n", b"KEY\n")
    payload = certificate_payload(PodCertificateProjection(**paths), found, Readers(0o644, 7, None))
    assert contents(payload) == expected
    assert {(file.mode, file.user) for file in payload.values()} == {(0o600, 7)}
