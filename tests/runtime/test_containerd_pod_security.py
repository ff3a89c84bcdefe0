"""What a pod asks for, and what its container sees of it, on a real containerd: users, rights, namespaces, devices.

At the end: what containerd 1 cannot do must be refused with words, not left out in silence. (`test_containerd_two.py`
has what later ones can.)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.containerd_programs import containerd_version
from tests.runtime.containerd_stage import manifest, stage_on
from trikubelet.admission.handlers import wants_strict_groups
from trikubelet.admission.sysctls import SysctlAllowList

if TYPE_CHECKING:
    from tests.containerd_node import ContainerdNode
    from tests.runtime.containerd_stage import ContainerdStage
    from trikubelet.api import Pod

pytestmark = [pytest.mark.containerd, pytest.mark.root]

STATUS = "cat /proc/self/status"
CAP_CHOWN, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN = (1 << bit for bit in (0, 10, 12, 13, 21))
# The kernel gives the number of a namespace that is gone to the next one, so each waits for the other.
NAMESPACES = """
    for kind in pid ipc net uts mnt; do readlink /proc/self/ns/$kind; done
    touch /shared/$NAME; until [ -e /shared/main -a -e /shared/other ]; do sleep 0.02; done
    """
UNCONFINED, FILTERED = "0", "2"


async def kernel_view(stage: ContainerdStage, pod: Pod, container: str = "main") -> dict[str, str]:
    """/proc/self/status as the container sees it."""
    lines = await stage.output(pod, container)
    return {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}


async def test_users_and_groups_are_those_of_the_pod_and_the_container(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    pod = manifest(
        "users",
        """
        securityContext:
          {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000, supplementalGroups: [4000], runAsNonRoot: true}
        containers:
        - {name: main}
        - {name: other, securityContext: {runAsUser: 1001, runAsGroup: 2001}}
        """,
        "id -u; id -g; id -G",
    )
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        await stage.ended(pod, "other")
        assert stage.lines(pod, "other")[:2] == ["1001", "2001"]
        user, group, groups = await stage.output(pod)
        assert (user, group) == ("1000", "2000")
        # The image's own /etc/group puts user 1000 into 5000 as well: that is supplementalGroupsPolicy Merge.
        assert set(groups.split()) == {"2000", "3000", "4000", "5000"}


async def test_who_must_not_be_root_does_not_start_as_root(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest("no-root", "securityContext: {runAsNonRoot: true}\ncontainers: [{name: main}]", "id")
    async with stage_on(containerd, tmp_path) as stage:
        result = (await stage.sync(pod)).results[-1]
        problem = (
            "container has runAsNonRoot and image will run as root "
            '(pod: "no-root_default(uid-no-root)", container: main)'
        )
        assert (result.reason, result.message) == ("CreateContainerConfigError", problem)
        assert stage.said(pod)[-1] == ("Failed", f"Error: {problem}")
        await stage.destroy(pod)


@pytest.mark.parametrize(
    ("context", "has", "lacks", "no_new_privileges", "seccomp"),
    [
        pytest.param("{}", CAP_CHOWN | CAP_NET_RAW, CAP_SYS_ADMIN | CAP_NET_ADMIN, "0", UNCONFINED, id="nothing"),
        pytest.param(
            "{capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, allowPrivilegeEscalation: false}",
            *(CAP_NET_BIND_SERVICE, CAP_CHOWN | CAP_NET_RAW, "1", UNCONFINED),
            id="little",
        ),
        pytest.param(
            "{capabilities: {add: [NET_ADMIN], drop: [CHOWN]}, seccompProfile: {type: RuntimeDefault}}",
            *(CAP_NET_ADMIN | CAP_NET_RAW, CAP_CHOWN, "0", FILTERED),
            id="some",
        ),
        pytest.param(
            "{seccompProfile: {type: Localhost, localhostProfile: mine.json}}",
            *(CAP_CHOWN, CAP_SYS_ADMIN, "0", FILTERED),
            id="own filter",
        ),
        pytest.param("{privileged: true}", CAP_SYS_ADMIN | CAP_NET_ADMIN, 0, "0", UNCONFINED, id="privileged"),
    ],
)
async def test_rights_are_what_the_security_context_says(
    containerd: ContainerdNode,
    tmp_path: Path,
    context: str,
    has: int,
    lacks: int,
    no_new_privileges: str,
    seccomp: str,
) -> None:
    pod = manifest("rights", f"containers: [{{name: main, securityContext: {context}}}]", STATUS)
    profiles = tmp_path / "root" / "seccomp"
    profiles.mkdir(parents=True)
    (profiles / "mine.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    async with stage_on(containerd, tmp_path) as stage:
        seen = await kernel_view(stage, pod)
    effective = int(seen["CapEff"], 16)
    assert effective & has == has
    assert effective & lacks == 0
    assert (seen["NoNewPrivs"], seen["Seccomp"]) == (no_new_privileges, seccomp)


async def test_the_nodes_default_filter_holds_where_a_pod_says_nothing(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    silent = manifest("silent", "containers: [{name: main}]", STATUS)
    free = manifest("free", "securityContext: {seccompProfile: {type: Unconfined}}\ncontainers: [{name: main}]", STATUS)
    async with stage_on(containerd, tmp_path, seccomp_default=True) as stage:
        assert (await kernel_view(stage, silent))["Seccomp"] == FILTERED
        assert (await kernel_view(stage, free))["Seccomp"] == UNCONFINED


async def test_the_root_folder_can_be_read_only(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "read-only",
        """
        containers:
        - {name: main, securityContext: {readOnlyRootFilesystem: true}}
        - {name: other}
        """,
        "touch /file 2>/dev/null && echo written || echo refused",
    )
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        await stage.ended(pod, "other")
        assert stage.lines(pod, "other") == ["written"]
        assert await stage.output(pod) == ["refused"]


async def test_the_kernels_secrets_are_masked_unless_asked_otherwise(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    script = """
        wc -c < /proc/timer_list | grep -qx 0 && echo masked || echo open
        (echo 0 > /proc/sys/kernel/printk_ratelimit) 2>/dev/null && echo writable || echo "read-only"
        [ -e /dev/kmsg ] && echo devices || echo "no devices"
        """
    usual = manifest("usual", "containers: [{name: main}]", script)
    bare = manifest("bare", "containers: [{name: main, securityContext: {privileged: true}}]", script)
    async with stage_on(containerd, tmp_path) as stage:
        assert await stage.output(usual) == ["masked", "read-only", "no devices"]
        limit = Path("/proc/sys/kernel/printk_ratelimit")
        before = limit.read_text()
        try:
            assert await stage.output(bare) == ["open", "writable", "devices"]
        finally:
            limit.write_text(before)


async def test_sysctls_are_the_pods_own_in_both_spellings(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "sysctls",
        """
        securityContext:
          sysctls:
          - {name: net.ipv4.ip_unprivileged_port_start, value: "80"}
          - {name: net/ipv4/tcp_syncookies, value: "0"}
          - {name: kernel.shm_rmid_forced, value: "1"}
        containers: [{name: main}]
        """,
        "cd /proc/sys; cat net/ipv4/ip_unprivileged_port_start net/ipv4/tcp_syncookies kernel/shm_rmid_forced",
    )
    unsafe = manifest(
        "unsafe",
        "securityContext: {sysctls: [{name: net.core.somaxconn, value: '9'}]}\ncontainers: [{name: main}]",
        "cat /proc/sys/net/core/somaxconn",
    )
    async with stage_on(containerd, tmp_path, allowed_unsafe_sysctls=("net.core.*",)) as stage:
        machine = stage.options.machine
        forbids, allows = (SysctlAllowList.of_node(names, machine.kernel) for names in ((), ("net.core.*",)))
        assert forbids.problem(pod) is None
        assert await stage.output(pod) == ["80", "0", "1"]
        assert forbids.problem(unsafe) == '"net.core.somaxconn" not allowlisted'
        assert allows.problem(unsafe) is None
        assert await stage.output(unsafe) == ["9"]


async def test_namespaces_are_own_shared_or_the_nodes(containerd: ContainerdNode, tmp_path: Path) -> None:
    shared = "volumeMounts: [{name: shared, mountPath: /shared}]"
    two = f"""
volumes: [{{name: shared, hostPath: {{path: /unused}}}}]
containers:
- {{name: main, env: [{{name: NAME, value: main}}], {shared}}}
- {{name: other, env: [{{name: NAME, value: other}}], {shared}}}
"""
    node = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "ipc", "net", "uts", "mnt")]
    async with stage_on(containerd, tmp_path) as stage:

        async def seen(name: str, settings: str) -> tuple[list[str], list[str]]:
            pod = manifest(name, settings + two, NAMESPACES)
            for old in stage.mounts.paths["shared"].iterdir():
                old.unlink()
            await stage.start(pod)
            await stage.ended(pod, "other")
            other = stage.lines(pod, "other")
            return await stage.output(pod), other

        main, other = await seen("own", "")
        assert [a == b for a, b in zip(main, other, strict=True)] == [False, True, True, True, False]
        assert not set(main) & set(node)
        main, other = await seen("together", "shareProcessNamespace: true")
        assert [a == b for a, b in zip(main, other, strict=True)] == [True, True, True, True, False]
        main, _ = await seen("node", "hostPID: true\nhostIPC: true\nhostNetwork: true")
        assert [a == b for a, b in zip(main, node, strict=True)] == [True, True, True, True, False]


async def test_a_pod_in_the_nodes_network_has_the_nodes_name_and_addresses(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    pod = manifest(
        "host-network",
        """
        hostNetwork: true
        containers:
        - name: main
          env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
        """,
        "hostname; ls /sys/class/net; echo $IP; cat /etc/hosts",
    )
    async with stage_on(containerd, tmp_path) as stage:
        given = attrs.evolve(await stage.status(pod), ips=("192.168.0.1",))
        devices = set(os.listdir("/sys/class/net"))  # noqa: PTH208 - no folder of anybody's
        result = await stage.sync_seen(pod, given)
        assert result.error is None, result.error
        await stage.ended(pod)
        lines = stage.lines(pod)
        await stage.destroy(pod)
    assert lines[0] == os.uname().nodename
    # Those of other pods come and go.
    assert devices & set(os.listdir("/sys/class/net")) <= set(lines)  # noqa: PTH208 - no folder of anybody's
    assert "192.168.0.1" in lines
    assert Path("/etc/hosts").read_text().splitlines()[-1] in lines


# What containerd 1 lacks


@pytest.fixture
def _only_before_2() -> None:
    if containerd_version() >= (2, 0):
        pytest.skip("this containerd can do it")


before_2 = pytest.mark.usefixtures("_only_before_2")


@before_2
async def test_a_pod_with_its_own_users_is_refused_on_this_runtime(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest("own-users", "hostUsers: false\ncontainers: [{name: main}]", "id")
    async with stage_on(containerd, tmp_path) as stage:
        [result] = (await stage.sync(pod)).results
        problem = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        assert result.reason == "CreatePodSandboxError"
        assert problem in result.message
        assert stage.said(pod) == [("FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}")]
        assert (await stage.status(pod)).sandbox_statuses == ()


@before_2
async def test_an_image_as_volume_is_refused_on_this_runtime(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "image-volume",
        """
        volumes: [{name: data, image: {reference: "localhost/test:1", pullPolicy: Never}}]
        containers:
        - {name: main, volumeMounts: [{name: data, mountPath: /data}]}
        - {name: other}
        """,
        "echo runs",
    )
    async with stage_on(containerd, tmp_path) as stage:
        _, refused, other = (await stage.sync(pod)).results
        version = stage.manager.runtime_version
        problem = f"image volumes need containerd 2.1 or CRI-O 1.31; this node runs containerd {version}"
        assert (refused.reason, refused.message) == ("CreateContainerConfigError", problem)
        assert ("Failed", f"Error: {problem}") in stage.said(pod)
        assert not other.failed
        await stage.ended(pod, "other")
        assert stage.lines(pod, "other") == ["runs"]
        await stage.destroy(pod)


@before_2
@pytest.mark.parametrize("wanted", ["Enabled", "IfPossible"])
async def test_mounts_that_are_read_only_in_depth_are_refused_or_shallow(
    containerd: ContainerdNode, tmp_path: Path, wanted: str
) -> None:
    mount = f"{{name: shared, mountPath: /data, readOnly: true, recursiveReadOnly: {wanted}}}"
    pod = manifest(
        "recursive",
        f"""
        volumes: [{{name: shared, hostPath: {{path: /unused}}}}]
        containers: [{{name: main, volumeMounts: [{mount}]}}]
        """,
        "touch /data/file 2>/dev/null || echo refused",
    )
    async with stage_on(containerd, tmp_path) as stage:
        if wanted == "IfPossible":
            assert await stage.output(pod) == ["refused"]
            return
        result = (await stage.sync(pod)).results[-1]
        assert result.reason == "CreateContainerConfigError"
        assert re.search(r"recursive read-only|recursiveReadOnly", result.message, re.IGNORECASE)
        await stage.destroy(pod)


@before_2
async def test_strict_groups_are_refused_by_the_node(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest("strict", "securityContext: {supplementalGroupsPolicy: Strict}\ncontainers: [{name: main}]", "id")
    async with stage_on(containerd, tmp_path) as stage:
        assert wants_strict_groups(pod)
        assert not stage.abilities().supplemental_groups_policy
