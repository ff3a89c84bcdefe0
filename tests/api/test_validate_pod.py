"""Which pods can be run, and what is said of the others: the words of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import pod_from_dict, set_pod_defaults, validate_pod

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def problems(metadata: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    wire = {
        "metadata": {"name": "p", "namespace": "default", **(metadata or {})},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }
    return [str(problem) for problem in validate_pod(set_pod_defaults(pod_from_dict(wire)))]


def of_container(**fields: Any) -> list[str]:
    """Problems of the one container, without their common prefix."""
    spec = {name: fields.pop(name) for name in ("volumes", "hostNetwork", "os") if name in fields}
    found = problems(containers=[{"name": "c", "image": "i", **fields}], **spec)
    return [problem.removeprefix("spec.containers[0].") for problem in found]


def of_volume(**source: Any) -> list[str]:
    found = problems(volumes=[{"name": "v", **source}])
    return [problem.removeprefix("spec.volumes[0].") for problem in found]


def test_a_plain_pod_is_sound() -> None:
    assert problems() == []


def test_a_pod_with_everything_in_order_is_sound() -> None:
    container = {
        "name": "main",
        "image": "i:1",
        "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}, {"containerPort": 80, "protocol": "UDP"}],
        "env": [
            {"name": "A.b-c", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/w", "subPath": "a/b"}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": 2}},
        "livenessProbe": {"exec": {"command": ["true"]}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}, "stopSignal": "SIGUSR1"},
        "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    spec = {
        "containers": [container],
        "initContainers": [
            {"name": "init", "image": "i"},
            {"name": "sidecar", "image": "i", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}},
        ],
        "ephemeralContainers": [{"name": "debug", "image": "i", "targetContainerName": "main"}],
        "volumes": [{"name": "v", "hostPath": {"path": "/x", "type": "Directory"}}, {"name": "w", "newSource": {}}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.1", "fd00::1"], "searches": ["_x.example.com", "."]},
        "tolerations": [{"operator": "Exists"}, {"key": "a/b", "value": "c", "effect": "NoExecute"}],
        "hostAliases": [{"ip": "::1", "hostnames": ["a.b"]}],
        "activeDeadlineSeconds": 5,
        "os": {"name": "linux"},
        "securityContext": {"sysctls": [{"name": "net.core/somaxconn", "value": "1"}]},
    }
    assert problems({"labels": {"a/b": "", "c": "D_e"}, "annotations": {"X/y": "anything"}}, **spec) == []


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"name": ""}, "metadata.name: Required value: name or generateName is required"),
        ({"namespace": ""}, "metadata.namespace: Required value"),
        ({"namespace": "a.b"}, f'metadata.namespace: Invalid value: "a.b": {LABEL}'),
        ({"name": "a" * 254}, f'metadata.name: Invalid value: "{"a" * 254}": must be no more than 253 bytes'),
        ({"labels": {"/a": "b"}}, 'metadata.labels: Invalid value: "/a": prefix part must be non-empty'),
        ({"labels": {"a/": "b"}}, 'metadata.labels: Invalid value: "a/": name part must be non-empty'),
        ({"annotations": {"a": "x" * 262144}}, "metadata.annotations: Too long: may not be more than 262144 bytes"),
        (
            {"annotations": {"kubernetes.io/config.mirror": "x"}},
            'metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "x": '
            "must set spec.nodeName if mirror pod annotation is set",
        ),
    ],
)
def test_metadata(metadata: dict[str, Any], problem: str) -> None:
    assert problem in problems(metadata)


def test_a_label_value_that_ends_in_a_dash_is_refused() -> None:
    (problem,) = problems({"labels": {"a": "b-"}})
    assert problem.startswith(
        'metadata.labels[a]: Invalid value: "b-": a valid label must be an empty string or consist'
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": ""}, ["name: Required value"]),
        ({"name": "A"}, [f'name: Invalid value: "A": {LABEL}']),
        ({"image": ""}, ["image: Required value"]),
        ({"image": " i"}, ['image: Invalid value: " i": must not have leading or trailing whitespace']),
        (
            {"imagePullPolicy": "Sometimes"},
            ['imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"'],
        ),
        (
            {"terminationMessagePolicy": "x"},
            ['terminationMessagePolicy: Unsupported value: "x": supported values: "File", "FallbackToLogsOnError"'],
        ),
        ({"ports": [{}]}, ["ports[0].containerPort: Required value"]),
        (
            {"ports": [{"containerPort": 65536, "hostPort": -1}]},
            [
                "ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
                "ports[0].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            {"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]},
            ['ports[1].name: Duplicate value: "a"'],
        ),
        (
            {"ports": [{"containerPort": 1, "name": "1--2-"}]},
            [
                'ports[0].name: Invalid value: "1--2-": must contain at least one letter (a-z)',
                'ports[0].name: Invalid value: "1--2-": must not contain consecutive hyphens',
                'ports[0].name: Invalid value: "1--2-": must not begin or end with a hyphen',
            ],
        ),
        (
            {"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]},
            ['ports[1].hostPort: Duplicate value: "TCP//9"'],
        ),
        (
            {"ports": [{"containerPort": 1, "protocol": "tcp"}]},
            ['ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"'],
        ),
        (
            {"ports": [{"containerPort": 1, "hostPort": 2}], "hostNetwork": True},
            ["ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true"],
        ),
        ({"env": [{"value": "x"}]}, ["env[0].name: Required value"]),
        (
            {"env": [{"name": "a=b"}]},
            [
                'env[0].name: Invalid value: "a=b": a valid environment variable name must consist only of printable '
                "ASCII characters other than '='"
            ],
        ),
        (
            {"env": [{"name": "A", "valueFrom": {}}]},
            [
                'env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, '
                "`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            ],
        ),
        (
            {"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
            ['env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty'],
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]},
            [
                'env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "spec.x": supported values: "metadata.name", '
                '"metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", '
                '"status.hostIPs", "status.podIP", "status.podIPs"'
            ],
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}}]},
            [
                'env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": '
                "only divisor's values 1m and 1 are supported with the cpu resource"
            ],
        ),
        (
            {"envFrom": [{}]},
            ['envFrom[0]: Invalid value: "": must specify one of: `configMapRef` or `secretRef`'],
        ),
        (
            {"volumeMounts": [{"name": "x", "mountPath": ""}]},
            ['volumeMounts[0].name: Not found: "x"', "volumeMounts[0].mountPath: Required value"],
        ),
        (
            {
                "volumes": [{"name": "v"}],
                "volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "../b"}, {"name": "v", "mountPath": "/a"}],
            },
            [
                "volumeMounts[0].subPath: Invalid value: \"../b\": must not contain '..'",
                'volumeMounts[1].mountPath: Invalid value: "/a": must be unique',
            ],
        ),
        (
            {
                "volumes": [{"name": "v"}],
                "volumeMounts": [{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}],
            },
            [
                "volumeMounts[0].mountPropagation: Forbidden: "
                "Bidirectional mount propagation is available only to privileged containers"
            ],
        ),
        (
            {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}},
            ['resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
        ),
        (
            {"resources": {"requests": {"memory": "-1"}}},
            ['resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0'],
        ),
        (
            {"resources": {"requests": {"pods": "1"}}},
            ['resources.requests[pods]: Invalid value: "pods": must be a standard resource for containers'],
        ),
        (
            {"resources": {"limits": {"example.com/gpu": "500m"}}},
            [
                'resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer',
                'resources.requests[example.com/gpu]: Invalid value: "500m": must be an integer',
            ],
        ),
        (
            {"resources": {"requests": {"example.com/gpu": "1"}}},
            ["resources.limits: Required value: Limit must be set for non overcommitable resources"],
        ),
        (
            {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}},
            ["resources: Forbidden: HugePages require cpu or memory"],
        ),
        (
            {"resources": {"claims": [{"name": "x"}]}},
            ['resources.claims[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims which is empty'],
        ),
        ({"livenessProbe": {}}, ["livenessProbe: Required value: must specify a handler type"]),
        (
            {"livenessProbe": {"exec": {}, "tcpSocket": {"port": "ok"}, "successThreshold": 2}},
            [
                "livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
                "livenessProbe.exec.command: Required value",
                "livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            {"readinessProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 1, "periodSeconds": -1}},
            [
                "readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                "readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
            ],
        ),
        (
            {"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}},
            [
                "lifecycle.preStop.sleep: Invalid value: 31: "
                "must be non-negative and less than terminationGracePeriodSeconds (30)"
            ],
        ),
        (
            {"lifecycle": {"stopSignal": "SIGTERM"}},
            ["lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"],
        ),
        (
            {"securityContext": {"runAsUser": -1, "procMount": "x", "seccompProfile": {"type": "Localhost"}}},
            [
                "securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                'securityContext.procMount: Unsupported value: "x": supported values: "Default", "Unmasked"',
                "securityContext.seccompProfile.localhostProfile: Required value: "
                "must be set when seccomp type is Localhost",
            ],
        ),
        (
            {"restartPolicyRules": [{"action": "Restart"}]},
            [
                "restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                "restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
    ],
)
def test_containers(fields: dict[str, Any], expected: list[str]) -> None:
    assert of_container(**fields) == expected


def test_names_are_unique_over_all_kinds_of_containers() -> None:
    one = {"name": "c", "image": "i"}
    assert problems(containers=[one, one], initContainers=[one], ephemeralContainers=[one]) == [
        'spec.containers[1].name: Duplicate value: "c"',
        'spec.initContainers[0].name: Duplicate value: "c"',
        'spec.ephemeralContainers[0].name: Duplicate value: "c"',
    ]


def test_a_pod_needs_a_container() -> None:
    assert problems(containers=[]) == ["spec.containers: Required value"]


def test_only_sidecars_among_init_containers_have_probes_and_hooks() -> None:
    probe = {"livenessProbe": {"tcpSocket": {"port": 1}}}
    assert problems(initContainers=[{"name": "i", "image": "i", **probe}]) == [
        "spec.initContainers[0].livenessProbe: Forbidden: "
        "may not be set for init containers without restartPolicy=Always"
    ]


def test_ephemeral_containers_have_no_ports_and_a_known_target() -> None:
    one = {"name": "e", "image": "i", "ports": [{"containerPort": 1}], "targetContainerName": "x"}
    assert problems(ephemeralContainers=[one]) == [
        'spec.ephemeralContainers[0].targetContainerName: Not found: "x"',
        "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"hostPath": {}}, ["path: Required value"]),
        ({"hostPath": {"path": "/a/.."}}, ["path: Invalid value: \"/a/..\": must not contain '..'"]),
        (
            {"emptyDir": {"sizeLimit": "-1"}},
            ["sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
        ),
        ({"secret": {}}, ["secretName: Required value"]),
        (
            {"configMap": {"name": "m", "defaultMode": 0o1000, "items": [{"key": "", "path": "/a"}]}},
            [
                "defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                "items[0].key: Required value",
                'items[0].path: Invalid value: "/a": must be a relative path',
            ],
        ),
        (
            {"configMap": {"name": "m", "items": [{"key": "k", "path": "..data"}]}},
            ["items[0].path: Invalid value: \"..data\": must not start with '..'"],
        ),
        ({"persistentVolumeClaim": {}}, ["claimName: Required value"]),
        (
            {"projected": {"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]}},
            ["sources[0]: Forbidden: may not specify more than 1 volume type per source"],
        ),
        (
            {
                "projected": {
                    "sources": [
                        {name: {"name": "x", "items": [{"key": "k", "path": "p"}]}} for name in ("secret", "configMap")
                    ]
                }
            },
            ['Invalid value: "p": conflicting duplicate paths'],
        ),
        (
            {"downwardAPI": {"items": [{"path": "p"}]}},
            ["Required value: one of fieldRef and resourceFieldRef is required"],
        ),
    ],
)  # fmt: skip
def test_volumes(source: dict[str, Any], expected: list[str]) -> None:
    kind = next(iter(source))
    found = [problem.removeprefix(f"{kind}.").removeprefix(f"{kind}: ") for problem in of_volume(**source)]
    assert found == expected


def test_a_volume_has_one_source_and_a_name_of_its_own() -> None:
    both = {"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}
    assert problems(volumes=[{"name": ""}]) == ["spec.volumes[0].name: Required value"]
    assert problems(volumes=[both, {"name": "v"}, {"name": "v"}]) == [
        "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type",
        'spec.volumes[2].name: Duplicate value: "v"',
    ]


def test_a_token_needs_a_service_account_and_ten_minutes() -> None:
    token = {"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}
    volumes = [{"name": "v", "projected": {"sources": [token]}}]
    path = "spec.volumes[0].projected.sources[0].serviceAccountToken"
    assert problems(volumes=volumes) == [
        f"{path}.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
        f"{path}: Forbidden: must not be specified when serviceAccountName is not set",
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"restartPolicy": "Sometimes"},
            ['spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'],
        ),
        (
            {"dnsPolicy": "None"},
            ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            {"dnsConfig": {"nameservers": ["x"]}},
            [
                'spec.dnsConfig.nameservers[0]: Invalid value: "x": '
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            ],
        ),
        (
            {"activeDeadlineSeconds": 0},
            ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (
            {"tolerations": [{"key": "a", "tolerationSeconds": 1, "operator": "Exists", "value": "x"}]},
            [
                'spec.tolerations[0].effect: Invalid value: "": '
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
                "spec.tolerations[0].operator: Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
            ],
        ),
        (
            {"hostAliases": [{"ip": "localhost"}]},
            [
                'spec.hostAliases[0].ip: Invalid value: "localhost": '
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            ],
        ),
        ({"hostUsers": False, "hostPID": True}, ["spec.hostPID: Forbidden: when `hostUsers` is false"]),
        (
            {"securityContext": {"sysctls": [{"name": "net.a"}, {"name": "a b"}]}, "hostNetwork": True},
            [
                'spec.securityContext.sysctls[0].name: Invalid value: "net.a": '
                "may not be specified when 'hostNetwork' is true",
                'spec.securityContext.sysctls[1].name: Invalid value: "a b": must have at most 253 characters and '
                r"match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ],
        ),
        ({"hostname": "a.b"}, [f'spec.hostname: Invalid value: "a.b": {LABEL}']),
        ({"os": {"name": "plan9"}}, ['spec.os: Unsupported value: "plan9": supported values: "linux", "windows"']),
        (
            {"overhead": {"cpu": "-1"}},
            ['spec.overhead[cpu]: Invalid value: "-1": must be greater than or equal to 0'],
        ),
        (
            {
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}],
                "resources": {"requests": {"cpu": "1"}},
            },
            [
                'spec.resources.requests[cpu]: Invalid value: "1": '
                "must be greater than or equal to aggregate container requests of 2"
            ],
        ),
    ],
)
def test_specs(spec: dict[str, Any], expected: list[str]) -> None:
    assert problems(**spec) == expected
