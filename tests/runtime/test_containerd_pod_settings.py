"""What a pod asks for, and what its container sees of it, on a real containerd: names, variables, files, resources."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.containerd_stage import manifest, stage_on
from trikubelet.api import ConfigMap, Quantity, Secret

if TYPE_CHECKING:
    from tests.containerd_node import ContainerdNode

pytestmark = [pytest.mark.containerd, pytest.mark.root]


async def test_the_environment_comes_in_its_order_and_expanded(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "environment",
        r"""
        hostname: box
        initContainers:
        - name: writer
          command: [sh, -c, "printf \"FROM_FILE='it is $NODE'\\n\" > /files/settings.env"]
          env: [{name: NODE, value: node-1}]
          volumeMounts: [{name: shared, mountPath: /files}]
        containers:
        - name: main
          command: [sh, -c, 'tr "\0" "\n" < /proc/self/environ; echo "args: $0 $1"']
          args: ["$(GREETING)", "$$(GREETING) $(NOBODY)"]
          envFrom:
          - {prefix: M_, configMapRef: {name: settings}}
          - {configMapRef: {name: nowhere, optional: true}}
          - {secretRef: {name: keys}}
          env:
          - {name: M_COLOUR, value: green}
          - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
          - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
          - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
          - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
          - {name: ASKED, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
          - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: COLOUR}}}
          - {name: KEY, valueFrom: {secretKeyRef: {name: keys, key: KEY}}}
          - {name: NO_KEY, valueFrom: {secretKeyRef: {name: keys, key: other, optional: true}}}
          - {name: FILE, valueFrom: {fileKeyRef: {volumeName: shared, path: settings.env, key: FROM_FILE}}}
          - {name: GREETING, value: "hi $(POD) at $(WEB_SERVICE_HOST), $$(POD), $(LATER)"}
          - {name: LATER, value: now}
          - {name: with-dash, value: kept}
          resources: {limits: {cpu: 500m}, requests: {cpu: 250m}}
        volumes: [{name: shared, emptyDir: {}}]
        """,
        labels={"app": "shop"},
    )
    async with stage_on(containerd, tmp_path, allocatable={"memory": Quantity("512Mi")}) as stage:
        stage.objects.config_maps["default", "settings"] = ConfigMap(data={"COLOUR": "red", "SIZE": "9"})
        stage.objects.secrets["default", "keys"] = Secret(data={"KEY": b"open sesame"})
        stage.objects.services["WEB_SERVICE_HOST"] = "10.0.0.7"
        await stage.start(pod)
        await stage.ended(pod, "writer")
        [address] = (await stage.status(pod)).ips
        lines = await stage.output(pod)
    seen = dict(line.split("=", 1) for line in lines[:-1])
    expected = {
        "M_COLOUR": "green",
        "M_SIZE": "9",
        "POD": "environment",
        "LABEL": "shop",
        "HOST": "192.168.0.1",
        "IP": address,
        "CPUS": "500",
        "MEMORY": "512",
        "ASKED": "250",
        "COLOUR": "red",
        "KEY": "open sesame",
        "FILE": "it is node-1",
        "GREETING": "hi environment at 10.0.0.7, $(POD), $(LATER)",
        "LATER": "now",
        "with-dash": "kept",
        "WEB_SERVICE_HOST": "10.0.0.7",
        "HOSTNAME": "box",
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert "NO_KEY" not in seen
    assert lines[-1] == "args: hi environment at 10.0.0.7, $(POD), $(LATER) $(GREETING) $(NOBODY)"


async def test_names_and_the_hosts_file_are_the_pods(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "named",
        """
        hostname: box
        subdomain: shop
        setHostnameAsFQDN: true
        hostAliases: [{ip: 1.2.3.4, hostnames: [far, far.away]}]
        containers: [{name: main, command: [sh, -c, "hostname; cat /proc/sys/kernel/hostname /etc/hosts"]}]
        """,
    )
    overridden = manifest(
        "overridden",
        """
        hostnameOverride: other.example.org
        containers: [{name: main, command: [sh, -c, "hostname; cat /etc/hosts"]}]
        """,
    )
    async with stage_on(containerd, tmp_path, cluster_domain="cluster.test") as stage:
        await stage.start(pod)
        [address] = (await stage.status(pod)).ips
        name = "box.shop.default.svc.cluster.test"
        hosts = await stage.output(pod)
        assert hosts[:3] == [name, name, "# Kubernetes-managed hosts file."]
        assert f"{address}\t{name}\tbox" in hosts
        assert hosts[-2:] == ["# Entries added by HostAliases.", "1.2.3.4\tfar\tfar.away"]
        other = await stage.output(overridden)
        assert other[0] == "other.example.org"
        assert other[-1].endswith("\tother.example.org")


async def test_resolv_conf_follows_policy_and_limits(containerd: ContainerdNode, tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\nsearch home.test\noptions timeout:1\n")
    script = "containers: [{name: main, command: [cat, /etc/resolv.conf]}]"
    config = """\
dnsConfig:
  nameservers: [192.0.2.2, 192.0.2.3, 192.0.2.4]
  searches: [more.test]
  options: [{name: ndots, value: "2"}, {name: edns0}]
"""
    pods = {
        policy: manifest(policy.lower(), f"dnsPolicy: {policy}\n{more}\n{script}")
        for policy, more in (("Default", ""), ("None", config), ("ClusterFirst", ""))
    }
    both = manifest("both", f"dnsPolicy: ClusterFirst\n{config}\n{script}")
    node: dict[str, Any] = {
        "resolver_config": resolver,
        "cluster_dns": ("10.96.0.10",),
        "cluster_domain": "cluster.test",
    }
    cluster_search = "search default.svc.cluster.test svc.cluster.test cluster.test home.test"
    async with stage_on(containerd, tmp_path, **node) as stage:
        assert await stage.output(pods["Default"]) == [
            *("search home.test", "nameserver 192.0.2.1", "options timeout:1")
        ]
        servers = ["nameserver 192.0.2.2", "nameserver 192.0.2.3", "nameserver 192.0.2.4"]
        assert await stage.output(pods["None"]) == ["search more.test", *servers, "options ndots:2 edns0"]
        assert await stage.output(pods["ClusterFirst"]) == [
            *(cluster_search, "nameserver 10.96.0.10", "options ndots:5")
        ]
        assert await stage.output(both) == [
            *(f"{cluster_search} more.test", "nameserver 10.96.0.10", *servers[:2], "options ndots:2 edns0")
        ]
        assert [reason for reason, _ in stage.said(both) if reason.startswith("DNS")] == ["DNSConfigForming"]


async def test_resources_become_cgroup_values_and_an_oom_score(containerd: ContainerdNode, tmp_path: Path) -> None:
    script = """
        read_cgroup() { for file; do [ -e /sys/fs/cgroup/$file ] && echo "$file $(cat /sys/fs/cgroup/$file)"; done; }
        echo "oom $(cat /proc/self/oom_score_adj)"
        read_cgroup cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us memory/memory.limit_in_bytes
        read_cgroup cpu.weight cpu.max memory.max
        """
    burstable = manifest(
        "burstable",
        """
        containers:
        - name: main
          resources: {requests: {cpu: 250m, memory: 64Mi}, limits: {cpu: 500m, memory: 128Mi}}
        """,
        script,
    )
    best_effort = manifest("best-effort", "containers: [{name: main}]", script)
    async with stage_on(containerd, tmp_path, cpu_cfs_quota_period=50_000) as stage:
        memory = stage.options.machine.memory_capacity
        seen = dict(line.split(" ", 1) for line in await stage.output(burstable))
        assert int(seen.pop("oom")) == 1000 - 1000 * (64 * 2**20) // memory
        if stage.options.machine.cgroup_v2:
            assert seen == {"cpu.weight": "10", "cpu.max": "25000 50000", "memory.max": str(128 * 2**20)}
        else:
            assert seen == {
                "cpu/cpu.shares": "256",
                "cpu/cpu.cfs_quota_us": "25000",
                "cpu/cpu.cfs_period_us": "50000",
                "memory/memory.limit_in_bytes": str(128 * 2**20),
            }
        least = dict(line.split(" ", 1) for line in await stage.output(best_effort))
        assert least["oom"] == "1000"
        assert least.get("cpu/cpu.shares", "2") == "2"


async def test_mounts_are_read_only_partial_and_propagate_as_asked(containerd: ContainerdNode, tmp_path: Path) -> None:
    """The node mounts one folder after the start: only HostToContainer and Bidirectional show it."""
    pod = manifest(
        "mounts",
        """
        containers:
        - name: main
          command:
          - sh
          - -c
          - |
            touch /read-only/file 2>/dev/null || echo "read-only refused"
            cat /part/greeting /expanded/greeting
            mount -t tmpfs inner /both/inner && echo mounted
            until [ -e /both/outer/there ]; do sleep 0.02; done
            for name in none follows both; do [ -e /$name/outer/there ] && echo "$name sees it"; done
            echo done; until [ -e /both/end ]; do sleep 0.02; done
            umount /both/inner
          env: [{name: PART, value: two}]
          securityContext: {privileged: true}
          volumeMounts:
          - {name: shared, mountPath: /read-only, readOnly: true}
          - {name: shared, mountPath: /part, subPath: one}
          - {name: shared, mountPath: /expanded, subPathExpr: $(PART)}
          - {name: shared, mountPath: /none}
          - {name: shared, mountPath: /follows, mountPropagation: HostToContainer}
          - {name: shared, mountPath: /both, mountPropagation: Bidirectional}
        volumes: [{name: shared, hostPath: {path: /unused}}]
        """,
    )
    async with stage_on(containerd, tmp_path) as stage:
        shared = stage.mounts.paths["shared"]
        for part in ("one", "two", "inner", "outer"):
            (shared / part).mkdir()
            (shared / part / "greeting").write_text(f"from {part}\n")
        with mounted(shared, "--bind", "--make-shared", str(shared)):
            await stage.start(pod)
            await stage.until_line(pod, "mounted")
            assert any(line.split()[4] == str(shared / "inner") for line in mount_lines())
            with mounted(shared / "outer", "-t", "tmpfs", "outer"):
                (shared / "outer" / "there").touch()
                await stage.until_line(pod, "done")
                (shared / "end").touch()
                await stage.ended(pod)
            assert not any(line.split()[4] == str(shared / "inner") for line in mount_lines())
        lines = stage.lines(pod)
        assert lines[:4] == ["read-only refused", "from one", "from two", "mounted"]
        assert lines[4:] == ["follows sees it", "both sees it", "done"]
        await stage.destroy(pod)


async def test_a_terminal_and_stdin_are_there_when_asked_for(containerd: ContainerdNode, tmp_path: Path) -> None:
    script = 'test -t 0 && echo "in: terminal"; test -t 1 && echo "out: terminal" || cat; pwd'
    terminal = manifest(
        "terminal", "containers: [{name: main, tty: true, stdin: true, stdinOnce: true, workingDir: /tmp}]", script
    )
    plain = manifest("plain", "containers: [{name: main}]", script)
    async with stage_on(containerd, tmp_path) as stage:
        assert await stage.output(plain) == ["/"]  # and stdin is empty, or its cat would still wait
        assert await stage.output(terminal) == ["in: terminal", "out: terminal", "/tmp"]


async def test_the_last_words_are_kept_within_their_limits(containerd: ContainerdNode, tmp_path: Path) -> None:
    long = "i=0; while [ $i -lt 100 ]; do echo line-$i; i=$((i+1)); done"
    pod = manifest(
        "words",
        f"""
        containers:
        - name: file
          command: [sh, -c, "echo last words > /over/there; exit 3"]
          terminationMessagePath: /over/there
        - {{name: long, command: [sh, -c, "head -c 5000 /dev/zero | tr '\\\\0' x > /dev/termination-log"]}}
        - name: log
          command: [sh, -c, "{long}; exit 1"]
          terminationMessagePolicy: FallbackToLogsOnError
        - name: well
          command: [sh, -c, "{long}"]
          terminationMessagePolicy: FallbackToLogsOnError
        """,
    )
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        ends = {name: await stage.ended(pod, name) for name in ("file", "long", "log", "well")}
        assert (ends["file"].exit_code, ends["file"].message) == (3, "last words\n")
        assert ends["long"].message == 4096 * "x"
        assert ends["log"].message == "".join(f"line-{number}\n" for number in range(20, 100))
        assert ends["well"].message == ""
        await stage.destroy(pod)


async def test_logs_lie_where_collectors_look(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest("logged", "containers: [{name: main}]", "echo one; echo two >&2")
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        container = await stage.ended(pod)
        log = tmp_path / "logs" / "default_logged_uid-logged" / "main" / "0.log"
        written = [line.split(" ", 1) for line in log.read_text().splitlines()]
        assert all(re.fullmatch(r"[\d-]+T[\d:.]+(Z|[+-]\d\d:\d\d)", when) for when, _ in written)
        # The streams are two pipes: the runtime may read the second one first.
        assert sorted(line for _, line in written) == ["stderr F two", "stdout F one"]
        link = tmp_path / "containers" / f"logged_default_main-{container.id.id}.log"
        assert link.resolve() == log
        await stage.destroy(pod)
        assert not link.is_symlink()


async def test_a_runtime_class_names_the_handler(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with stage_on(containerd, tmp_path) as stage:
        stage.objects.handlers.update(sandboxed="other", broken="missing")
        known = manifest("known", "runtimeClassName: sandboxed\ncontainers: [{name: main}]", "echo hello")
        assert await stage.output(known) == ["hello"]
        for name, problem in (
            ("broken", 'no runtime for "missing" is configured'),
            ("unheard-of", 'runtimeclass.node.k8s.io "unheard-of" not found'),
        ):
            pod = manifest(name, f"runtimeClassName: {name}\ncontainers: [{{name: main}}]", "echo hello")
            [result] = (await stage.sync(pod)).results
            assert result.reason == "CreatePodSandboxError"
            assert problem in result.message
            [(reason, message)] = stage.said(pod)
            assert (reason, problem in message) == ("FailedCreatePodSandBox", True)
            await stage.destroy(pod)


class mounted:  # noqa: N801 - used as a statement
    """Something is mounted while the block runs."""

    def __init__(self, where: Path, *arguments: str) -> None:
        self._where = where
        self._arguments = arguments

    def __enter__(self) -> None:
        subprocess.run(["mount", *self._arguments, self._where], check=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self._where], check=True)


def mount_lines() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
