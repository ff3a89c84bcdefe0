"""`$(NAME)`, environment variables, and a pod's own fields as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.runtime.conftest import FakeMounts
from tests.runtime.objects import FakeObjects
from trikubelet.api import (
    ConfigMap,
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceFieldSelector,
    ResourceRequirements,
    Secret,
    SecretEnvSource,
    SecretKeySelector,
)
from trikubelet.container.downward import Addresses, field_value, resource_value, sort_pod_ips
from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.expansion import TOO_LONG, ExpansionError, expand_known, expand_strictly
from trikubelet.kube_client.object_getter import NoObjects, ObjectError
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.containers.environment import (
    EnvironmentObjects,
    container_environment,
    gather_env_files,
    gather_objects,
)
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trikubelet.kube_client.object_getter import ObjectGetter

VALUES = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("foo-$(VAR_A)-$(VAR_B)-bar", "foo-A-B-bar"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("$(VAR_EMPTY)|", "|"),
        ("$(VAR_UNKNOWN)", "$(VAR_UNKNOWN)"),
        ("$$(VAR_A)", "$(VAR_A)"),
        ("$$$(VAR_A)", "$A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$VAR_A", "$VAR_A"),
        ("$(VAR_A", "$(VAR_A"),
        ("$()", "$()"),
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("foo$", "foo$"),
        ("$$", "$"),
        ("\n\\$(VAR_A)", "\n\\A"),
    ],
)
def test_references_are_expanded_once(text: str, expanded: str) -> None:
    assert expand_known(text, VALUES) == expanded


def test_the_first_source_that_has_a_name_wins() -> None:
    assert expand_known("$(A)$(B)", {"A": "1"}, {"A": "2", "B": "3"}) == "13"


def test_references_to_references_do_not_fill_the_memory() -> None:
    """Ten variables of 750 bytes in all would become ten gigabytes."""
    variables = [EnvVar(name="V0", value="x" * 10)]
    variables += [EnvVar(name=f"V{n}", value=f"$(V{n - 1})" * 10) for n in range(1, 10)]
    found = environment(Container(name="main", env=tuple(variables)))
    assert found["V4"] == "x" * 100_000
    assert {found[f"V{n}"] for n in range(5, 10)} == {TOO_LONG}
    wide = [EnvVar(name="V", value="x" * 100_000), *(EnvVar(name=f"W{n}", value="$(V)") for n in range(100_000))]
    found = environment(Container(name="main", env=tuple(wide)))
    assert sum(map(len, found.values())) <= 6 * 2**20 + len(TOO_LONG)
    assert list(found.values())[-1] == TOO_LONG


@pytest.mark.parametrize("text", ["$(A)" * 8, "$(A)" * 7 + "x" * 16384, "$(A)" * 7 + "$$" * 16384])
def test_an_expansion_may_be_as_long_as_an_argument(text: str) -> None:
    assert len(expand_known(text, {"A": "x" * 16384})) == 8 * 16384
    with pytest.raises(ExpansionError):
        expand_known(text + "$(B)", {"A": "x" * 16384, "B": "12345"})


def test_strict_expansion_names_what_is_missing_or_empty() -> None:
    assert expand_strictly("a/$(VAR_A)", VALUES) == "a/A"
    with pytest.raises(KeyError, match="ODD, VAR_EMPTY"):
        expand_strictly("$(VAR_EMPTY)/$(ODD)/$(VAR_A)", VALUES)


POD = Pod(
    metadata=ObjectMeta(
        name="web",
        namespace="default",
        uid="uid-1",
        labels={"app": "web", "b": 'quote "'},
        annotations={"example.org/note": "hello", "a": "<b> & c\u2028\n"},
    ),
    spec=PodSpec(node_name="node-1", service_account_name="robot"),
)
ADDRESSES = Addresses(("10.0.0.7", "fd00::7"), ("192.168.0.1", "fd01::1"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['example.org/note']", "hello"),
        ("metadata.annotations['missing']", ""),
        ("metadata.labels", 'app="web"\nb="quote \\""'),
        ("metadata.annotations", 'a="<b> & c\\u2028\\n"\nexample.org/note="hello"'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "10.0.0.7"),
        ("status.podIPs", "10.0.0.7,fd00::7"),
        ("status.hostIP", "192.168.0.1"),
        ("status.hostIPs", "192.168.0.1,fd01::1"),
    ],
)
def test_a_pods_fields_are_known_by_path(path: str, value: str) -> None:
    assert field_value(POD, path, ADDRESSES) == value


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match=r"unsupported fieldPath: spec\.containers"):
        field_value(POD, "spec.containers", ADDRESSES)


@pytest.mark.parametrize(
    ("ips", "ipv6_first", "sorted_ips"),
    [
        # `TestSortPodIPs`
        (["10.0.0.7"], False, ["10.0.0.7"]),
        (["10.0.0.7", "fd00::7"], False, ["10.0.0.7", "fd00::7"]),
        (["fd00::7", "10.0.0.7"], False, ["10.0.0.7", "fd00::7"]),
        (["10.0.0.7", "fd00::7"], True, ["fd00::7", "10.0.0.7"]),
        (["fd00::7", "10.0.0.7"], True, ["fd00::7", "10.0.0.7"]),
        (["10.0.0.7"], True, ["10.0.0.7"]),
        (["fd00::7"], False, ["fd00::7"]),
        (["10.0.0.7", "10.0.0.8", "fd00::7", "10.0.0.9", "fd00::8"], False, ["10.0.0.7", "fd00::7"]),
        (["FD00:0:0::7"], False, ["fd00::7"]),
        (["nonsense"], False, []),
        ([], True, []),
    ],
)
def test_a_pod_has_one_address_of_a_family_and_the_asked_for_family_first(
    ips: list[str], ipv6_first: bool, sorted_ips: list[str]
) -> None:
    assert sort_pod_ips(ips, ipv6_first=ipv6_first) == sorted_ips
    addresses = Addresses(ips, ["fd01::1"], ipv6_first=ipv6_first)
    assert field_value(POD, "status.podIP", addresses) == next(iter(sorted_ips), "")
    assert field_value(POD, "status.podIPs", addresses) == ",".join(sorted_ips)


RESOURCES = ResourceRequirements(
    requests={"cpu": Quantity("10m"), "memory": Quantity("10Ki"), "hugepages-2Mi": Quantity("4Mi")},
    limits={"memory": Quantity("1Gi")},
)


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("requests.cpu", None, "1"),
        ("requests.cpu", "1m", "10"),
        ("requests.memory", None, "10240"),
        ("requests.memory", "1Mi", "1"),
        ("limits.memory", "1Mi", "1024"),
        ("limits.cpu", None, "8"),
        ("requests.hugepages-2Mi", None, "4194304"),
        ("requests.ephemeral-storage", None, "0"),
    ],
)
def test_amounts_are_divided_and_rounded_up(resource: str, divisor: str | None, value: str) -> None:
    container = Container(name="c", resources=RESOURCES)
    selector = ResourceFieldSelector(resource=resource)
    if divisor is not None:
        selector = attrs.evolve(selector, divisor=Quantity(divisor))
    assert resource_value(selector, POD, container, {"cpu": Quantity("7500m")}) == value


def test_amounts_of_another_container_are_found_by_its_name() -> None:
    other = Container(name="other", resources=RESOURCES)
    pod = attrs.evolve(POD, spec=PodSpec(containers=(other,)))
    selector = ResourceFieldSelector(container_name="other", resource="requests.cpu", divisor=Quantity("1m"))
    assert resource_value(selector, pod, Container(name="c"), {}) == "10"
    with pytest.raises(ContainerConfigError, match="container nobody not found"):
        resource_value(attrs.evolve(selector, container_name="nobody"), pod, other, {})


ALLOCATABLE = {name: Quantity("8") for name in ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi")}


@pytest.mark.parametrize(
    ("resource", "value"),
    [
        ("limits.cpu", "2"),
        ("limits.memory", "1073741824"),
        ("limits.ephemeral-storage", "8"),
        ("limits.hugepages-2Mi", "0"),
    ],
)
def test_a_limit_that_is_not_set_is_the_pods_or_else_the_nodes(resource: str, value: str) -> None:
    shared = ResourceRequirements(
        limits={"cpu": Quantity("2"), "ephemeral-storage": Quantity("3"), "hugepages-2Mi": Quantity("4Mi")}
    )
    container = Container(name="c", resources=RESOURCES)
    pod = attrs.evolve(POD, spec=PodSpec(containers=(container,), resources=shared))
    assert resource_value(ResourceFieldSelector(resource=resource), pod, container, ALLOCATABLE) == value


def test_an_init_container_asked_for_by_name_has_only_its_own_limits() -> None:
    init, main = Container(name="init"), Container(name="main")
    pod = attrs.evolve(POD, spec=PodSpec(containers=(main,), init_containers=(init,)))

    def limit(name: str, asked_by: Container) -> str:
        selector = ResourceFieldSelector(container_name=name, resource="limits.cpu")
        return resource_value(selector, pod, asked_by, ALLOCATABLE)

    assert (limit("init", main), limit("init", init), limit("main", init), limit("", init)) == ("0", "0", "8", "8")


def environment(container: Container, **more: Any) -> dict[str, str]:
    return container_environment(POD, container, addresses=ADDRESSES, allocatable={}, **more)


async def gathered(container: Container, objects: ObjectGetter) -> dict[str, str]:
    return environment(container, objects=await gather_objects(objects, POD, container))


def from_field(path: str) -> EnvVarSource:
    return EnvVarSource(field_ref=ObjectFieldSelector(field_path=path))


def test_variables_see_those_before_them() -> None:
    container = Container(
        name="c",
        env=(
            EnvVar("IP", value_from=from_field("status.podIP")),
            EnvVar("URL", "http://$(IP)/$(LATER)$$(IP)"),
            EnvVar("LATER", "x"),
            EnvVar("EMPTY"),
        ),
    )
    assert environment(container) == {
        "IP": "10.0.0.7",
        "URL": "http://10.0.0.7/$(LATER)$(IP)",
        "LATER": "x",
        "EMPTY": "",
    }


def test_services_are_seen_but_the_pods_own_variables_win() -> None:
    container = Container(name="c", env=(EnvVar("A_PORT", "mine"), EnvVar("COPY", "$(B_HOST)")))
    objects = EnvironmentObjects(services={"A_PORT": "80", "B_HOST": "10.1.0.1"})
    assert environment(container, objects=objects) == {"A_PORT": "mine", "COPY": "10.1.0.1", "B_HOST": "10.1.0.1"}


# Config maps and secrets

SETTINGS = ConfigMap(data={"COLOR": "red", "SIZE": "1"}, binary_data={"BLOB": b"x"})
KEYS = Secret(data={"TOKEN": b"t0k3n", "RAW": b"\xff"})


def known() -> FakeObjects:
    return FakeObjects(
        secrets={("default", "keys"): KEYS},
        config_maps={("default", "settings"): SETTINGS},
        services={"DB_HOST": "10.1.0.1", "COLOR": "blue"},
    )


def from_config_map(name: str = "settings", prefix: str = "", optional: bool | None = None) -> EnvFromSource:
    return EnvFromSource(prefix=prefix, config_map_ref=ConfigMapEnvSource(name=name, optional=optional))


def from_secret(name: str = "keys", prefix: str = "", optional: bool | None = None) -> EnvFromSource:
    return EnvFromSource(prefix=prefix, secret_ref=SecretEnvSource(name=name, optional=optional))


def config_map_key(key: str, name: str = "settings", optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name=name, key=key, optional=optional))


def secret_key(key: str, name: str = "keys", optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(secret_key_ref=SecretKeySelector(name=name, key=key, optional=optional))


async def test_all_of_an_object_becomes_variables_which_later_ones_replace() -> None:
    container = Container(
        name="c",
        env_from=(from_config_map(), from_config_map(prefix="P_"), from_secret()),
        env=(EnvVar("SIZE", "2"), EnvVar("URL", "$(COLOR)/$(P_SIZE)/$(SIZE)/$(TOKEN)/$(DB_HOST)")),
    )
    assert await gathered(container, known()) == {
        "COLOR": "red",
        "SIZE": "2",
        "P_COLOR": "red",
        "P_SIZE": "1",
        "TOKEN": "t0k3n",
        "RAW": "\udcff",
        "URL": "red/1/2/t0k3n/10.1.0.1",
        "DB_HOST": "10.1.0.1",
    }


async def test_single_keys_become_variables() -> None:
    env = (EnvVar("A", value_from=config_map_key("COLOR")), EnvVar("B", value_from=secret_key("RAW")))
    made = await gathered(Container(name="c", env=env), known())
    assert (made["A"], made["B"]) == ("red", "\udcff")


async def test_each_object_is_fetched_once() -> None:
    objects = known()
    container = Container(
        name="c",
        env_from=(from_config_map(), from_config_map(prefix="P_"), from_secret()),
        env=(EnvVar("A", value_from=config_map_key("COLOR")), EnvVar("B", value_from=secret_key("RAW"))),
    )
    await gathered(container, objects)
    assert objects.asked == ["config map default/settings", "secret default/keys"]


@pytest.mark.parametrize(
    "source",
    [
        config_map_key("COLOR", name="other", optional=True),
        config_map_key("OTHER", optional=True),
        secret_key("TOKEN", name="other", optional=True),
        secret_key("OTHER", optional=True),
    ],
)
async def test_an_optional_variable_without_a_source_is_left_out(source: EnvVarSource) -> None:
    objects = FakeObjects(known().secrets, known().config_maps)
    assert await gathered(Container(name="c", env=(EnvVar("A", value_from=source),)), objects) == {}
    kept = Container(name="c", env=(EnvVar("A", "before"), EnvVar("A", value_from=source)))
    assert await gathered(kept, objects) == {"A": "before"}


async def test_optional_objects_may_be_missing() -> None:
    env_from = (from_config_map("other", optional=True), from_secret("other", optional=True))
    assert await gathered(Container(name="c", env_from=env_from), FakeObjects()) == {}


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        (Container(env_from=(from_config_map("other"),)), 'configmap "other" not found'),
        (Container(env_from=(from_secret("other"),)), 'secret "other" not found'),
        (Container(env=(EnvVar("A", value_from=config_map_key("K", "other")),)), 'configmap "other" not found'),
        (Container(env=(EnvVar("A", value_from=secret_key("K", "other")),)), 'secret "other" not found'),
        (
            Container(env=(EnvVar("A", value_from=config_map_key("BLOB")),)),
            "couldn't find key BLOB in ConfigMap default/settings",
        ),
        (Container(env=(EnvVar("A", value_from=secret_key("K")),)), "couldn't find key K in Secret default/keys"),
    ],
)
async def test_what_is_missing_is_named(container: Container, problem: str) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        await gathered(container, known())
    assert str(refused.value) == problem


@pytest.mark.parametrize("optional", [None, True])
async def test_config_maps_and_secrets_need_an_api_server(optional: bool | None) -> None:
    everything = Container(name="c", env_from=(from_config_map(optional=optional),))
    with pytest.raises(ContainerConfigError, match="couldn't get configMap default/settings, no kubeClient defined"):
        await gathered(everything, NoObjects())
    one = Container(name="c", env=(EnvVar("A", value_from=secret_key("a", optional=optional)),))
    with pytest.raises(ContainerConfigError, match="couldn't get secret default/keys, no kubeClient defined"):
        await gathered(one, NoObjects())


@attrs.define
class Unavailable(FakeObjects):
    """An API server that does not answer."""

    problem: str = "services have not yet been read at least once, cannot construct envvars"

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        raise ObjectError("no answer", "unavailable")

    async def service_variables(self, pod: Pod) -> Mapping[str, str]:
        if self.problem:
            raise ObjectError(self.problem, "unavailable")
        return {}


async def test_an_optional_object_that_cannot_be_asked_for_is_waited_for() -> None:
    container = Container(name="c", env_from=(from_config_map(optional=True),))
    with pytest.raises(ContainerConfigError, match="no answer"):
        await gathered(container, Unavailable(problem=""))


async def test_services_that_are_not_known_yet_are_waited_for() -> None:
    with pytest.raises(ContainerConfigError, match="services have not yet been read at least once"):
        await gathered(Container(name="c"), Unavailable())


# Files of variables


def file_key(key: str, path: str = "env", volume: str = "work", optional: bool | None = None) -> EnvVar:
    reference = FileKeySelector(volume_name=volume, path=path, key=key, optional=optional)
    return EnvVar("A", value_from=EnvVarSource(file_key_ref=reference))


async def with_files(tmp_path: Path, *env: EnvVar) -> dict[str, str]:
    work = tmp_path / "work"
    work.mkdir()
    (work / "env").write_bytes(b"NAME='w\xc3\xb6rld'\nRAW='\xff'\nEMPTY=''\n")
    (work / "broken").write_text("NAME=unquoted")
    (work / "out").symlink_to("../elsewhere")
    mounts = FakeMounts(tmp_path)
    mounts.paths = {"work": work}
    files = PodFiles(RuntimeOptions(root_dir=tmp_path, machine=MachineFacts(1)))
    container = Container(name="c", env=env)
    return environment(
        container, objects=EnvironmentObjects(files=await gather_env_files(files, mounts, POD, container))
    )


async def test_a_variable_comes_from_a_file_in_a_volume(tmp_path: Path) -> None:
    assert await with_files(tmp_path, file_key("NAME"), EnvVar("B", "hello $(A)")) == {
        "A": "wörld",
        "B": "hello wörld",
    }


async def test_a_file_need_not_be_text(tmp_path: Path) -> None:
    assert await with_files(tmp_path, file_key("RAW")) == {"A": "\udcff"}


@pytest.mark.parametrize("key", ["OTHER", "EMPTY"])
async def test_a_key_without_a_value_is_left_out_when_it_is_optional(tmp_path: Path, key: str) -> None:
    assert await with_files(tmp_path, file_key(key, optional=True)) == {}


@pytest.mark.parametrize("key", ["OTHER", "EMPTY"])
async def test_a_key_without_a_value_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        await with_files(tmp_path, file_key(key))
    path = tmp_path / "work" / "env"
    assert str(refused.value) == f'environment variable key "{key}" not found in file "{path}"'


@pytest.mark.parametrize("path", ["missing", "broken", "out", "../work/env"])
async def test_a_file_that_cannot_be_read_is_refused_without_details(tmp_path: Path, path: str) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        await with_files(tmp_path, file_key("NAME", path=path, optional=True))
    assert str(refused.value) == "couldn't parse env file"


async def test_the_volume_of_a_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        await with_files(tmp_path, file_key("NAME", volume="other"))
    assert str(refused.value) == 'cannot find the volume "other" referenced by FileKeyRef'
