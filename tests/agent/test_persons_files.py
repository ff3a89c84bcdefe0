"""Whatever commands are typed: a person's manifests change only where the person says so."""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from tests.agent.random_acting import NAMES, PersonsFolder, some_manifest
from tests.examples import examples
from trikubelet.agent.acting import Acting
from trikubelet.agent.options import AgentOptions
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node_api.handlers.acting import ActingRefusedError
from trikubelet.sources.manifest_folder import PREFIX
from trikubelet.sources.manifests import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod

COMMANDS = 200


@pytest.mark.parametrize("seed", range(examples(4)))
@pytest.mark.parametrize("in_cluster", [False, True])
async def test_random_commands_leave_a_persons_files_alone(
    tmp_path: Path, seed: int, in_cluster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the machine does not lose its power meanwhile
    rng = Random(seed)
    mine = PersonsFolder(tmp_path / "mine", tmp_path / "removed", tmp_path / "written" if in_cluster else None)
    done: Counter[str] = Counter()
    agent = SimpleNamespace(
        options=AgentOptions(
            configuration=KubeletConfiguration(), root_dir=tmp_path, node_name="node", manifests=tmp_path / "mine"
        ),
        cluster=object() if in_cluster else None,
        files=None,
        writing_manifests=trio.Lock(),
        syncers={},
    )

    def find(namespace: str, name: str) -> Pod | None:
        for folder in (tmp_path / "mine", tmp_path / "applied"):
            for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                for entry in read_manifest(file, "node").pods:
                    if (entry.pod.metadata.namespace, entry.pod.metadata.name) == (namespace, name):
                        return entry.pod
        return None

    actions = Acting(cast("Agent", agent), find)
    for _ in range(COMMANDS):
        if rng.random() < 0.3:
            mine.edit(rng)
        mine.remember()
        kind = rng.choice(("apply", "run", "delete", "delete", "restart"))
        pod = f"{rng.choice(NAMES)}-node"
        flags = {flag: rng.random() < 0.5 for flag in ("remove_file", "with_others", "must_be_new", "dry_run")}
        try:
            if kind == "delete":
                await actions.delete("default", pod, remove_file=flags["remove_file"], with_others=flags["with_others"])
            elif kind == "restart":
                await actions.restart("default", pod, rng.choice((None, "main", "other")))
            else:
                name = rng.choice(("web.yaml", "db.yaml", f"{PREFIX}web.yaml", "../x", "mine", "applied"))
                await actions.apply(
                    some_manifest(rng).encode(),
                    name,
                    dry_run=kind == "apply" and flags["dry_run"],
                    must_be_new=kind == "run" and flags["must_be_new"],
                )
        except ActingRefusedError:
            done[f"{kind} refused"] += 1
        else:
            done[kind] += 1
        mine.check(f"{kind} {pod} {flags}", may_move=kind == "delete" and flags["remove_file"])
    assert mine.moved > 0, "the commands are such that something happens"
    assert min(done[kind] for kind in ("apply", "run", "delete", "apply refused", "run refused", "delete refused")) > 0
