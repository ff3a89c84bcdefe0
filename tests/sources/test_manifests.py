from __future__ import annotations

import re
from pathlib import Path

import pytest

from trikubelet.sources.manifests import MAX_MANIFEST_SIZE, MAX_PROBLEMS, parse_manifest, read_manifest

POD = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    image: localhost/host
"""


def names(text: str) -> list[str]:
    manifest = parse_manifest(text.encode(), Path("/m/a.yaml"), "node")
    assert manifest.problems == ()
    return [entry.pod.metadata.name for entry in manifest.pods]


def problems(text: str | bytes) -> list[str]:
    raw = text if isinstance(text, bytes) else text.encode()
    manifest = parse_manifest(raw, Path("/m/a.yaml"), "node")
    assert manifest.pods == ()
    return [str(problem) for problem in manifest.problems]


def test_one_pod_is_read_with_its_defaults() -> None:
    manifest = parse_manifest(POD.format(name="web").encode(), Path("/m/a.yaml"), "node")
    pod = manifest.pods[0].pod
    assert pod.full_name == "web-node_default"
    assert pod.spec.restart_policy == "Always"
    assert pod.spec.containers[0].image_pull_policy == "IfNotPresent", "no registry has it"


def test_several_documents_and_a_pod_list_are_read_in_order() -> None:
    items = "".join(
        f"- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: 'x:1'}}]}}\n" for name in ("c", "d")
    )
    text = POD.format(name="a") + "---\n# nothing\n---\n" + POD.format(name="b")
    assert names(text + "---\napiVersion: v1\nkind: PodList\nitems:\n" + items) == [
        "a-node",
        "b-node",
        "c-node",
        "d-node",
    ]


def test_json_is_read() -> None:
    assert names(
        '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"c","image":"x"}]}}'
    ) == ["j-node"]


def test_each_pod_knows_where_it_begins() -> None:
    manifest = parse_manifest((POD.format(name="a") + "---\n" + POD.format(name="b")).encode(), Path("/m"), "node")
    assert [entry.line for entry in manifest.pods] == [1, 10]


def test_one_broken_document_makes_no_pod_of_the_file_new() -> None:
    found = problems(
        POD.format(name="a") + "---\n" + POD.format(name="b").replace("image: localhost/host", "image: ''")
    )
    assert found == ["/m/a.yaml:17: spec.containers[0].image: Required value"]


def test_a_problem_in_a_list_names_its_item() -> None:
    text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec:\n    containers:\n    - name: c\n"
    assert problems(text) == ["/m/a.yaml:7: items[0].spec.containers[0].image: Required value"]


def test_one_name_twice_in_a_file_is_a_problem() -> None:
    assert problems(POD.format(name="a") + "---\n" + POD.format(name="a")) == [
        "/m/a.yaml:13: metadata.name: the pod a-node_default is defined in line 1 already"
    ]


def test_a_key_twice_is_a_problem() -> None:
    assert problems(POD.format(name="a") + "    image: other\n") == [
        "/m/a.yaml:9: spec.containers[0].image: the key is given twice in one mapping"
    ]


def test_another_kind_is_a_problem() -> None:
    assert problems("apiVersion: apps/v1\nkind: Deployment\n") == [
        "/m/a.yaml:2: kind: expected Pod or PodList, got Deployment: a controller of a cluster makes pods of it. "
        "To run it here, write a Pod of its spec.template"
    ]


def test_a_template_of_a_chart_is_recognised() -> None:
    assert "helm template" in problems("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Values.name }}\n")[0]


def test_all_problems_of_a_pod_are_named_at_once() -> None:
    found = problems(POD.format(name="A_b").replace("image: localhost/host", "ports: [{containerPort: 99999}]"))
    assert [problem.split(": ")[1] for problem in found] == [
        "metadata.name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
    ] or len(found) == 3


def test_an_unknown_field_is_a_warning_with_its_line() -> None:
    text = POD.format(name="a") + "    livenesProbe: {}\n"
    manifest = parse_manifest(text.encode(), Path("/m/a.yaml"), "node")
    assert len(manifest.pods) == 1
    assert [str(warning) for warning in manifest.warnings] == [
        "/m/a.yaml:9: spec.containers[0].livenesProbe: unknown field, it has no effect"
    ]


def test_a_fraction_of_a_byte_is_a_warning_with_its_line() -> None:
    """As kubectl warns. A request that is only the limit's default is not named again."""
    limits = "    resources:\n      limits: {cpu: 100m, memory: 128m}\n"
    own = "      requests:\n        ephemeral-storage: 1500m\n        cpu: 1m\n"
    text = POD.format(name="a") + limits + own + "  overhead:\n    memory: 0.5\n"
    manifest = parse_manifest(text.encode(), Path("/m/a.yaml"), "node")
    place, expected = "spec.containers[0].resources", "expected whole bytes, such as 128Mi or 128M"
    fraction = "is a fraction of a byte (m is a thousandth) and counts as"
    assert manifest.problems == ()
    assert [str(warning) for warning in manifest.warnings] == [
        f'/m/a.yaml:10: {place}.limits[memory]: "128m" {fraction} 1: {expected}',
        f'/m/a.yaml:12: {place}.requests[ephemeral-storage]: "1500m" {fraction} 2: {expected}',
        f'/m/a.yaml:15: spec.overhead[memory]: "500m" {fraction} 1: {expected}',
    ]


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    manifest = read_manifest(path, "node")
    assert [problem.message for problem in manifest.problems] == ["expected at most 10 MiB, got 100.0 MiB"]


def test_the_size_limit_is_the_kubelets() -> None:
    assert MAX_MANIFEST_SIZE == 10 * 1024 * 1024


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"# only a comment\n", b"---\n---\n"])
def test_a_file_without_a_pod_is_a_problem(raw: bytes) -> None:
    assert problems(raw) == ["/m/a.yaml: the file holds no pod"]


@pytest.mark.parametrize("uid", ["..", "a/../../b", "/etc", ".hidden", "x" * 300, "a\\nb"])
def test_a_uid_that_could_name_another_folder_is_refused(uid: str) -> None:
    raw = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, uid: "{uid}"}}
spec: {{containers: [{{name: main, image: x}}]}}
"""
    (problem,) = problems(raw.encode())
    assert "metadata.uid: Invalid value" in problem


# Every problem at once.


def test_problems_of_form_of_values_and_of_references_are_told_together() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: Web_1
spec:
  restartPolicy: Sometimes
  containers:
  - name: main
    ports: 80
    resources: {limits: {memory: lots}}
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}
    imge: x
  volumes:
  - name: v
    configMap: {name: c}
  - name: w
    configMap: {name: d}
  hostNetwork: "yes"
"""
    assert [
        problem.split(": ")[0:3:2] for problem in sorted(problems(text), key=lambda text: int(text.split(":")[1]))
    ] == [
        ["/m/a.yaml:4", "Invalid value"],
        ["/m/a.yaml:6", "Unsupported value"],
        ["/m/a.yaml:8", "Required value"],
        ["/m/a.yaml:9", "expected a list, got 80"],
        ["/m/a.yaml:10", 'expected a quantity such as "500m", "1.5Gi" or "1e3", got "lots"'],
        ["/m/a.yaml:12", "static pods may not reference secrets"],
        ["/m/a.yaml:15", "static pods may not reference configmaps"],
        ["/m/a.yaml:17", "static pods may not reference configmaps"],
        ["/m/a.yaml:19", 'expected true or false, got "yes"; remove the quotes and write true or false'],
    ]
    manifest = parse_manifest(text.encode(), Path("/m/a.yaml"), "node")
    assert [warning.line for warning in manifest.warnings] == [13]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{containers: 5}", ["spec.containers: expected a list, got 5"]),
        ("5", ["spec: expected an object, got 5"]),
        (
            "{containers: [{name: 5, image: x}, {name: 6, image: x}]}",
            [
                "spec.containers[0].name: expected a string, got 5; put quotes around it",
                "spec.containers[1].name: expected a string, got 6; put quotes around it",
            ],
        ),
        (
            "{containers: [{name: m, image: x, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: 5}]}",
            ["spec.volumes[0].name: expected a string, got 5; put quotes around it"],
        ),
        (
            "{hostNetwork: true, containers: [{name: m, image: x, ports: [{containerPort: a, hostPort: 80}]}]}",
            ['spec.containers[0].ports[0].containerPort: expected an integer, got "a"'],
        ),
        (
            "{containers: [{name: m, image: x, resources: {requests: {cpu: 1}, limits: {cpu: one}}}]}",
            ["spec.containers[0].resources.limits[cpu]: expected a quantity"],
        ),
        (
            "{containers: [{name: m, image: x}], tolerations: [{key: 5, value: a}]}",
            ["spec.tolerations[0].key: expected a string, got 5; put quotes around it"],
        ),
        (
            "{containers: [{name: m, image: x}], dnsPolicy: None, dnsConfig: {searches: [-]}}",
            ["spec.dnsConfig.nameservers: Required value", "spec.dnsConfig.searches[0]: Invalid value"],
        ),
        (
            "{containers: [{name: m, image: x}], volumes: [{name: v, hostPath: {type: Door}}]}",
            ["spec.volumes[0].hostPath.path: Required value", "spec.volumes[0].hostPath.type: Unsupported value"],
        ),
    ],
)
def test_what_follows_from_a_field_that_cannot_be_read_is_no_problem_of_its_own(spec: str, told: list[str]) -> None:
    found = problems(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n")
    assert len(found) == len(told), found
    for problem, beginning in zip(found, told, strict=True):
        assert problem.removeprefix("/m/a.yaml:4: ").startswith(beginning)


def test_documents_before_and_behind_one_that_is_no_yaml_are_checked() -> None:
    broken = POD.format(name="a").replace("image: localhost/host", "image: ''")
    text = broken + "---\nkind: Pod\nmetadata: {name: b\n---\n" + broken + "---\nkind: [\n"
    assert problems(text) == [
        "/m/a.yaml:12: did not find expected ',' or '}' (while parsing a flow mapping)",
        "/m/a.yaml:23: did not find expected node content (while parsing a flow node)",
        "/m/a.yaml:8: spec.containers[0].image: Required value",
        "/m/a.yaml:20: spec.containers[0].image: Required value",
        "/m/a.yaml:16: metadata.name: the pod a-node_default is defined in line 1 already",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_next_document_is_found_behind_letters_of_several_bytes(newline: str) -> None:
    text = "a: é漢\U0001f600\n---\nb: [é漢\U0001f600\n---\n# é\nc: [\n---\nkind: Pod\n".replace("\n", newline)
    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "/m/a.yaml:4",
        "/m/a.yaml:7",
        "/m/a.yaml:1",
        "/m/a.yaml:8",
        "/m/a.yaml:8",
        "/m/a.yaml:8",
    ]


def test_each_value_that_is_no_yaml_is_told_and_the_others_are_checked() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: !odd a\n  labels: *none\nspec:\n  containers:\n"
        "  - name: main\n    tty: .inf\n    ? [a]\n    : b\n    <<: 5\n"
    )
    assert problems(text) == [
        "/m/a.yaml:4: the tag !odd is not supported",
        "/m/a.yaml:5: the alias *none names no anchor before it",
        "/m/a.yaml:9: expected a finite number, got .inf",
        "/m/a.yaml:10: expected a string as key of a mapping",
        "/m/a.yaml:12: expected a mapping after <<",
        "/m/a.yaml:8: spec.containers[0].image: Required value",
    ]


def test_another_version_is_one_problem_of_several() -> None:
    assert problems("apiVersion: v2\nkind: Pod\nmetadata: {}\nspec: {containers: []}\n") == [
        "/m/a.yaml:1: apiVersion: expected v1, got v2",
        "/m/a.yaml:3: metadata.name: Required value: name is needed for the pod",
        "/m/a.yaml:4: spec.containers: Required value",
    ]


def test_two_pods_without_a_name_are_not_called_the_same_pod() -> None:
    pod = POD.format(name="''")
    assert [problem.partition(": ")[2] for problem in problems(f"{pod}---\n{pod}")] == [
        "metadata.name: Required value: name is needed for the pod"
    ] * 2


@pytest.mark.parametrize(
    "text", ["---\nkind: [\n" * 1000, (POD.format(name="A") + "---\n") * 1000, "--- !odd\n" * 1000]
)
def test_the_number_of_problems_is_bounded(text: str) -> None:
    found = problems(text)
    assert len(found) <= MAX_PROBLEMS + 1
    assert re.fullmatch(r"/m/a\.yaml:(\d+: stopped after 50 .*| and \d+ more)", found[-1]), found[-1]
