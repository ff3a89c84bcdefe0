"""Where a pod's devices could be: the rows of the kubelet's `topology_hints_test.go`, and more containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.devices.situations import R1, R2, book_of, container, make_pod
from trikubelet.allocation.demands import all_containers
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, TOPOLOGY_AFFINITY, admit
from trikubelet.allocation.topology.hints import UNEXPECTED, AllocationError, TopologyHint
from trikubelet.allocation.topology.policy import BEST_EFFORT, NONE, RESTRICTED, SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.formats.cpu_list import set_of
from trikubelet.node.devices.choice import is_on, picked
from trikubelet.node.devices.model import Needs, PluginDevice
from trikubelet.node.devices.topology import DeviceOffers, possible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.allocation.topology.hints import Hints
    from trikubelet.api import Container, Pod
    from trikubelet.node.devices.book import DeviceBook
    from trikubelet.node.devices.model import Grant

    Granted = Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]
    """Ids by the pod's UID, the container's name and the resource."""

MACHINE: Final = (0, 1)

EITHER: Final = [((0,), True), ((1,), True), ((0, 1), False)]
"""Either node, better than both."""


def on(*places: int | tuple[int, ...] | None) -> list[PluginDevice]:
    """Devices `dev1`, `dev2` and so on, each on its nodes; None where the plugin does not tell."""
    return [
        PluginDevice(f"dev{number}", numa_nodes=() if place is None else (place,) if isinstance(place, int) else place)
        for number, place in enumerate(places, start=1)
    ]


def offers(
    devices: Mapping[str, Sequence[PluginDevice]],
    granted: Granted | None = None,
    machine: tuple[int, ...] = MACHINE,
    running: frozenset[str] = frozenset(),
) -> DeviceOffers:
    book = book_of(devices)
    for uid, containers in (granted or {}).items():
        for name, resources in containers.items():
            for resource, ids in resources.items():
                book.give(uid, name, resource, ids, Needs())
    return DeviceOffers(book, machine, running)


def plain(hints: Hints) -> dict[str, list[tuple[tuple[int, ...], bool]] | None]:
    """Nodes, and whether they are preferred."""

    def nodes(hint: TopologyHint) -> tuple[int, ...]:
        assert hint.nodes is not None
        return tuple(number for number in range(64) if hint.nodes >> number & 1)

    return {
        resource: None if of_one is None else [(nodes(hint), hint.preferred) for hint in of_one]
        for resource, of_one in hints.items()
    }


COMMON: Final = [
    pytest.param(make_pod("p", container(r1=1)), {R1: on(None, None, ())}, {}, {R1: None}, id="no plugin tells"),
    pytest.param(make_pod("p", container(r1=1)), {R1: on(None, 1)}, {}, {R1: [((1,), True)]}, id="of one it is known"),
    pytest.param(make_pod("p", container(r1=1)), {R1: on(0, 1)}, {}, {R1: EITHER}, id="one on each node"),
    pytest.param(make_pod("p", container(r1=2)), {R1: on(0, 1)}, {}, {R1: [((0, 1), True)]}, id="two, one on each"),
    pytest.param(make_pod("p", container(r1=2)), {R1: on(0, 1, 0, 1)}, {}, {R1: EITHER}, id="two, two on each"),
    pytest.param(
        make_pod("p", container(r1=2, r2=1)),
        {R1: on(0, 1, 0, 1), R2: on(0)},
        {},
        {R1: EITHER, R2: [((0,), True)]},
        id="two kinds",
    ),
    pytest.param(make_pod("p", container(r1=6)), {R1: on(0, 0, 1, 1)}, {}, {R1: []}, id="more than there are"),
    pytest.param(
        make_pod("p", container(r1=2)),
        {R1: on(0, 0)},
        {"p": {"main": {R1: ["dev1", "dev2"]}}},
        {R1: [((0,), True)]},
        id="it has them",
    ),
    pytest.param(
        make_pod("p", container(r1=4)),
        {R1: on(0, 0, 1, 1)},
        {"p": {"main": {R1: ["dev1", "dev2"]}}},
        {R1: []},
        id="it has fewer",
    ),
    pytest.param(
        make_pod("p", container(r1=2)),
        {R1: on(0, 0, 1, 1)},
        {"p": {"main": {R1: ["dev1", "dev2", "dev3", "dev4"]}}},
        {R1: []},
        id="it has more",
    ),
    pytest.param(
        make_pod("p", container(r1=2)),
        {R1: on(0, 1, 0, 1)},
        {"q": {"main": {R1: ["dev1", "dev2"]}}},
        {R1: [((0, 1), False)]},
        id="one on each is left",
    ),
    pytest.param(make_pod("p", container(r1=0)), {R1: on(0)}, {}, {}, id="it wants none"),
    pytest.param(make_pod("p", container(r1=1)), {}, {}, {}, id="no plugin's business"),
    pytest.param(make_pod("p", container(r1=1), claimed=[R1]), {R1: on(0)}, {}, {}, id="of a claim"),
]
"""`getCommonTestCases`: what devices there are, who has some, and the hints."""


@pytest.mark.parametrize(("pod", "devices", "granted", "expected"), COMMON)
def test_where_a_containers_devices_could_be(
    pod: Pod, devices: Mapping[str, Sequence[PluginDevice]], granted: Granted, expected: object
) -> None:
    assert plain(offers(devices, granted).hints(pod, pod.spec.containers[0])) == expected


@pytest.mark.parametrize(
    ("pod", "devices", "granted", "expected"),
    [
        *COMMON,
        pytest.param(
            make_pod("p", container("one", r1=2), container("two", r2=2), container("three", other=2)),
            {R1: on(0, 0, 1, 1), R2: on(0, 0, 1, 1)},
            {},
            {R1: EITHER, R2: EITHER},
            id="two containers",
        ),
        pytest.param(
            make_pod(
                "p",
                container("one", r1=1, r2=1),
                container("two", r1=1, r2=1),
                container("three", other=1),
                init=[container("init1", r1=1, r2=1), container("init2", r1=1, r2=2)],
            ),
            {R1: on(0, 0, 1, 1), R2: on(0, 0, 1, 1)},
            {},
            {R1: EITHER, R2: EITHER},
            id="init containers",
        ),
        pytest.param(
            make_pod("p", container("one", r1=1, r2=1), container("two", r1=1, r2=1), container("three", other=1)),
            {R1: on(0, 0, 1, 1), R2: on(0, 0, 1, 1)},
            {"q": {"main": {R1: ["dev1", "dev3"], R2: ["dev1", "dev3"]}}},
            {R1: [((0, 1), False)], R2: [((0, 1), False)]},
            id="one on each is left, two containers",
        ),
        pytest.param(
            make_pod("p", container("one", r1=1), init=[container("side", r1=1, sidecar=True)]),
            {R1: on(0, 1)},
            {},
            {R1: [((0, 1), True)]},
            id="sidecars stay",
        ),
    ],
)
def test_where_a_pods_devices_could_be(
    pod: Pod, devices: Mapping[str, Sequence[PluginDevice]], granted: Granted, expected: object
) -> None:
    """`getPodScopeTestCases`, and the container's."""
    assert plain(offers(devices, granted).pod_hints(pod)) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (make_pod("p", init=[container("init", r1=2)]), {R1: 2}),
        (make_pod("p", init=[container("init1", r1=2), container("init2", r1=4)]), {R1: 4}),
        (make_pod("p", container(r1=2)), {R1: 2}),
        (
            make_pod(
                "p",
                container("one", r1=1, r2=1),
                container("two", r1=1, r2=1),
                init=[container("init1", r1=2, r2=2), container("init2", r1=2, r2=2)],
            ),
            {R1: 2, R2: 2},
        ),
        (
            make_pod(
                "p",
                container("one", r1=1, r2=1),
                container("two", r1=1),
                init=[container("init1", r1=2, r2=1), container("init2", r1=3, r2=2)],
            ),
            {R1: 3, R2: 2},
        ),
        (
            make_pod(
                "p",
                container("one", r1=3, r2=2),
                container("two", r1=3, r2=2),
                init=[container("init1", r1=2, r2=1), container("init2", r1=2, r2=1)],
            ),
            {R1: 6, R2: 4},
        ),
    ],
)
def test_a_pod_needs_what_its_containers_have_at_one_time(pod: Pod, expected: dict[str, int]) -> None:
    """`TestGetPodDeviceRequest`: with as many devices there is a place for them, with one less there is none."""
    enough = {resource: on(*[0] * amount) for resource, amount in expected.items()}
    assert plain(offers(enough).pod_hints(pod)) == {resource: [((0,), True)] for resource in expected}
    too_few = {resource: on(*[0] * (amount - 1)) for resource, amount in expected.items()}
    found = plain(offers(too_few).pod_hints(pod))
    assert not any(found.get(resource) for resource in expected)


@pytest.mark.parametrize(
    ("machine", "places", "free", "reusable", "amount", "expected"),
    [
        ((0, 1), (0,), {"dev1"}, set(), 1, [((0,), True)]),
        (tuple(range(34)), (0, 1), {"dev1", "dev2"}, set(), 1, EITHER),
        ((0, 1), (0, 1), {"dev1", "dev2"}, set(), 1, EITHER),
        ((0, 1, 2, 3), (0,), set(), {"dev1"}, 1, [((0,), True)]),
        ((0, 1, 2, 3), (0, 1), {"dev2"}, {"dev1"}, 2, [((0, 1), True)]),
        ((0, 3, 5, 7), (3, 5), {"dev1", "dev2"}, set(), 2, [((3, 5), True)]),
        ((0, 4), (4, None), {"dev1", "dev2"}, set(), 1, [((4,), True)]),
        ((0, 1), (0, 99, -1, 2**62), {"dev1", "dev2", "dev3", "dev4"}, set(), 1, [((0,), True)]),
        ((0, 1), (99,), {"dev1"}, set(), 1, []),
        ((0, 1), ((0, 1), 1), {"dev1", "dev2"}, set(), 2, [((1,), True), ((0, 1), False)]),
        ((0, 1), (0, 1), {"dev1", "dev2"}, {"gone"}, 1, EITHER),
        ((0, 1), (0, 0, 1), {"dev2"}, {"dev1", "dev3"}, 1, [((0, 1), False)]),
        ((), (0,), {"dev1"}, set(), 1, []),
    ],
)
def test_sets_of_nodes_that_have_enough(
    machine: tuple[int, ...],
    places: Sequence[int | None],
    free: set[str],
    reusable: set[str],
    amount: int,
    expected: list[tuple[tuple[int, ...], bool]],
) -> None:
    """`TestGenerateDeviceTopologyHintsFiltersNUMANodes`, `TestDeviceNUMANodes`"""
    devices = {device.id: device for device in on(*places)}
    assert plain({R1: possible(devices, machine, free, reusable, amount)}) == {R1: expected}


@pytest.mark.parametrize("name", [BEST_EFFORT, RESTRICTED])
@pytest.mark.parametrize(("machine", "place"), [((0, 1), 0), ((0, 1), 1), ((3, 7), 7)])
def test_devices_cpus_and_memory_agree(name: str, machine: tuple[int, ...], place: int) -> None:
    """`TestFilteredDeviceHintsMergeWithOtherProviders`"""
    pod = make_pod("p", container(r1=1))
    others = [TopologyHint(1 << place, preferred=True), TopologyHint(set_of(machine))]
    hints = offers({R1: on(place)}, machine=machine).hints(pod, pod.spec.containers[0])
    best = TopologyPolicy(name, machine).merge([hints, {"cpu": others}, {"memory": others}])
    assert best == (TopologyHint(1 << place, preferred=True), True)


def agreed(
    offered: DeviceOffers, pod: Pod, policy: str = SINGLE_NUMA_NODE, scope: str = CONTAINER_SCOPE
) -> Mapping[str, int]:
    """The affinities of the pod's containers. Raises AllocationError."""
    (after,) = admit(TopologyPolicy(policy, MACHINE), scope, [offered], pod)
    assert isinstance(after, DeviceOffers)
    return after.affinities.get(pod.metadata.uid, {})


def test_what_one_container_takes_the_next_one_cannot_have() -> None:
    """In the kubelet the first one has picked by then."""
    pod = make_pod("p", container("one", r1=1), container("two", r1=1), container("three", cpu=1))
    offered = offers({R1: on(0, 1)})
    assert agreed(offered, pod) == {"one": 0b01, "two": 0b10}
    assert not offered.affinities, "it is a value"
    with pytest.raises(AllocationError) as error:
        agreed(offered, pod, scope=POD_SCOPE)
    assert error.value.reason == TOPOLOGY_AFFINITY


def test_what_an_init_container_took_decides_for_those_that_use_it_again() -> None:
    pod = make_pod("p", container("main", r1=2), init=[container("init", r1=1)])
    assert agreed(offers({R1: on(1, 1, 0, 1, 0)}, {"q": {"main": {R1: ["dev3", "dev5"]}}}), pod) == {
        "init": 0b10,
        "main": 0b10,
    }


def test_all_containers_of_a_pod_are_on_its_nodes() -> None:
    pod = make_pod("p", container("one", r1=1), container("two", r1=2), init=[container("init", r1=2)])
    devices = {R1: on(0, 0, 1, 1, 1)}
    assert agreed(offers(devices), pod, scope=POD_SCOPE) == dict.fromkeys(("init", "one", "two"), 0b10)
    after = offers(devices).allocate_pod(pod, TopologyHint(0b10, preferred=True))
    assert after.affinities == {"p": dict.fromkeys(("init", "one", "two"), 0b10)}


def test_without_a_policy_nothing_is_agreed_on_but_that_there_are_enough() -> None:
    pod = make_pod("p", container("one", r1=1), container("two", r1=1))
    assert agreed(offers({R1: on(0, 1)}), pod, NONE) == {}
    with pytest.raises(AllocationError) as error:
        agreed(offers({R1: on(0)}), pod, NONE)
    assert str(error.value) == f"requested number of devices unavailable for {R1}. Requested: 1, Available: 0"
    assert error.value.reason == UNEXPECTED


def test_a_plugin_that_does_not_tell_leaves_it_to_others() -> None:
    pod = make_pod("p", container("one", r1=1, r2=1))
    assert agreed(offers({R1: on(None), R2: on(1)}), pod) == {"one": 0b10}


SETTLED: Final = [
    (container(r1=2), True),
    (container(r1=1), False),
    (container(r1=2, r2=1), False),
    (container(cpu=1), True),
    (container(r2=0), True),
    (container("other", r1=1), False),
    (container("runs", r1=1), True),
]


@pytest.mark.parametrize(("one", "settled"), SETTLED)
def test_who_has_what_it_asks_for_is_settled(one: Container, settled: bool) -> None:
    pod = make_pod("p", one)
    offered = offers({R1: on(0, 0, 0), R2: on(1)}, {"p": {"main": {R1: ["dev1", "dev2"]}}}, running=frozenset({"runs"}))
    assert offered.is_settled(pod, one) is settled


def test_a_container_that_runs_needs_nothing() -> None:
    pod = make_pod("p", container("main", r1=1), container("other", r1=1))
    offered = offers({R1: on(0)}, {"p": {"main": {R1: ["gone"]}}}, running=frozenset({"main"}))
    assert offered.hints(pod, pod.spec.containers[0]) == {}
    assert plain(offered.pod_hints(pod)) == {R1: [((0,), True)]}
    assert agreed(offered, pod) == {"other": 0b01}


def test_the_devices_of_a_plugin_that_has_not_come_back_are_anywhere() -> None:
    pod = make_pod("p", container(r1=1))
    offered = offers({}, {"p": {"main": {R1: ["a"]}}})
    assert offered.hints(pod, pod.spec.containers[0]) == {R1: None}
    assert offered.is_settled(pod, pod.spec.containers[0])


def test_a_device_that_its_plugin_lists_no_more_is_nowhere() -> None:
    pod = make_pod("p", container(r1=1))
    offered = offers({R1: on(0)}, {"p": {"main": {R1: ["gone"]}}})
    assert plain(offered.hints(pod, pod.spec.containers[0])) == {R1: []}


PLACES = st.lists(st.sampled_from([None, 0, 1, (0, 1)]), min_size=1, max_size=6)
PODS = st.lists(
    st.builds(
        lambda init, amounts: ([*init], [*amounts]),
        st.lists(st.integers(1, 2), max_size=2),
        st.lists(st.integers(1, 2), min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=3,
)
"""How much init containers and containers want."""


@given(PLACES, PODS, st.sampled_from([CONTAINER_SCOPE, POD_SCOPE]), st.data())
def test_whoever_agreed_on_a_node_gets_devices_of_it_whatever_plugins_prefer(
    places: list[int | tuple[int, ...] | None],
    pods: list[tuple[list[int], list[int]]],
    scope: str,
    data: st.DataObject,
) -> None:
    """Pods are agreed on one after the other, and plugins are asked when all have been."""
    book = book_of({R1: on(*places)})
    agreed_on: list[tuple[Pod, DeviceOffers]] = []
    for number, (init, amounts) in enumerate(pods):
        pod = make_pod(
            f"p{number}",
            *(container(f"c{index}", r1=amount) for index, amount in enumerate(amounts)),
            init=[container(f"i{index}", r1=amount) for index, amount in enumerate(init)],
        )
        try:
            (after,) = admit(
                TopologyPolicy(SINGLE_NUMA_NODE, MACHINE), scope, [DeviceOffers(book.copy(), MACHINE)], pod
            )
        except AllocationError:
            continue
        assert isinstance(after, DeviceOffers)
        book.promise(pod.metadata.uid, after.picked(pod.metadata.uid))
        agreed_on.append((pod, after))
    for pod, after in data.draw(st.permutations(agreed_on)):
        uid = pod.metadata.uid
        nodes = after.affinities.get(uid, {})
        for one in all_containers(pod):
            (amount,) = book.wanted(pod, one).values()
            pick = book.pick(pod, one, R1, amount, nodes.get(one.name))
            assert pick is not None
            preferred = data.draw(st.sets(st.sampled_from([f"dev{number}" for number in range(1, 7)])))
            book.give(uid, one.name, R1, picked(pick, preferred), Needs())
        book.end_promise(uid)
    lasting = [granted[R1].devices for pod, _ in agreed_on for granted in lasting_grants(book, pod)]
    taken = [id_ for devices in lasting for id_ in devices]
    assert len(taken) == len(set(taken)), "no device is anybody's twice"
    for pod, after in agreed_on:
        for name, granted in book.granted_to(pod.metadata.uid).items():
            node = after.affinities.get(pod.metadata.uid, {}).get(name)
            if node is not None:
                assert all(is_on(node, its) for its in granted[R1].devices.values())


def lasting_grants(book: DeviceBook, pod: Pod) -> list[Mapping[str, Grant]]:
    """What others than init containers have."""
    granted = book.granted_to(pod.metadata.uid)
    return [granted[one.name] for one in pod.spec.containers]
