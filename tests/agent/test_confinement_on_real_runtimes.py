"""Seccomp and no_new_privs as manifests ask for them, on the embedded runtime and on containerd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.agent.real_node import RealNode

SCRIPT = """
while IFS=: read -r name value; do
  case $name in NoNewPrivs|Seccomp) echo $name $value;; esac
done < /proc/self/status
unshare -U true 2>/dev/null && echo namespace || echo no namespace
mkdir /tmp/made 2>/dev/null && echo folder || echo no folder
"""
NO_FOLDERS = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}
EXPECTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "silent": ({}, ["NoNewPrivs 0", "Seccomp 2", "no namespace", "folder"]),
    "default": (
        {"seccompProfile": {"type": "RuntimeDefault"}, "allowPrivilegeEscalation": False},
        ["NoNewPrivs 1", "Seccomp 2", "no namespace", "folder"],
    ),
    "unconfined": (
        {"seccompProfile": {"type": "Unconfined"}},
        ["NoNewPrivs 0", "Seccomp 0", "namespace", "folder"],
    ),
    "own": (
        {"seccompProfile": {"type": "Localhost", "localhostProfile": "below/mine.json"}},
        ["NoNewPrivs 0", "Seccomp 2", "namespace", "no folder"],
    ),
    "privileged": ({"privileged": True}, ["NoNewPrivs 0", "Seccomp 0", "namespace", "folder"]),
}


@pytest.mark.both
def test_containers_are_filtered_as_their_security_contexts_and_the_node_say(node: RealNode) -> None:
    profiles = node.root / "seccomp" / "below"
    profiles.mkdir(parents=True)
    (profiles / "mine.json").write_text(json.dumps(NO_FOLDERS))
    containers = [node.container(SCRIPT, name, securityContext=context) for name, (context, _) in EXPECTED.items()]
    node.run("confined", *containers, restartPolicy="Never")
    node.configure(seccompDefault=True)
    node.start()
    node.until_phase("confined", "Succeeded")
    assert {name: node.lines("confined", name) for name in EXPECTED} == {
        name: lines for name, (_, lines) in EXPECTED.items()
    }


def test_a_missing_profile_is_named_in_the_status_of_the_pod(node: RealNode) -> None:
    missing = {"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}}
    node.run("missing", node.container("true", securityContext=missing))
    node.start()

    def is_named() -> bool:
        waiting = node.status("missing").state.waiting
        return waiting is not None and f"{node.root}/seccomp/none.json" in (waiting.message or "")

    node.until(is_named, "the pod's status names the file")
