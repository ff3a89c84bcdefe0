"""`trikubelet images` on the store of an embedded runtime, without an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click.testing
import pytest
import trio

from tests.cli.conftest import Outcome, run_command
from tests.embedded.images.archives import Entry, directory, layer, oci_archive
from tests.oci_image import OciImage
from tests.registry_node import RegistryNode, needs_registry
from trikubelet.cli.main import cli
from trikubelet.clock import SystemClock
from trikubelet.runtime.images.pull_records.model import PodCredentials, VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from tests.cli.conftest import StandInAgent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def images(root: Path, command: str, *arguments: object) -> Outcome:
    return run_command("images", command, *arguments, "--runtime-root", root)


def imported(root: Path, name: str) -> str:
    """An image with a file of its name; its id."""
    archive = oci_archive(root.parent / "archive.tar", [layer(name)], name)
    assert images(root, "import", archive).code == 0
    found: str = json.loads(images(root, "inspect", name).out)["id"]
    return found


def names(root: Path) -> list[str]:
    return [line.split()[0] for line in images(root, "list").out.splitlines()[1:]]


def test_an_image_is_imported_listed_and_shown(root: Path) -> None:
    archive = oci_archive(root.parent / "archive.tar", [layer("file")], "app:1", {"Cmd": ["run"]})
    assert images(root, "import", archive).out == "imported docker.io/library/app:1\n"
    assert names(root) == ["localhost/host:latest", "docker.io/library/app:1"]
    first = images(root, "list").out.splitlines()[1]
    assert first.endswith(" -"), "the machine's own files take no room"
    shown = json.loads(images(root, "inspect", "app:1").out)
    assert shown["repo_tags"] == ["docker.io/library/app:1"]
    assert shown["spec"]["config"] == {"Cmd": ["run"]}


def test_an_archive_may_come_on_stdin(root: Path) -> None:
    archive = oci_archive(root.parent / "archive.tar", [layer("file")], "app:1")
    result = click.testing.CliRunner().invoke(
        cli, ["images", "import", "-", "--runtime-root", str(root)], input=archive.read_bytes()
    )
    assert result.stdout == "imported docker.io/library/app:1\n"
    assert names(root)[1:] == ["docker.io/library/app:1"]


def test_an_image_gets_another_name_and_loses_one_after_the_other(root: Path) -> None:
    imported(root, "app:1")
    assert images(root, "tag", "app:1", "other:2").out == "tagged docker.io/library/other:2\n"
    assert images(root, "rm", "app:1").out == "untagged app:1\n"
    assert names(root)[1:] == ["docker.io/library/other:2"]
    assert images(root, "rm", "other:2").out == "removed docker.io/library/other:2\n"
    assert names(root)[1:] == []


def test_images_that_are_used_or_pinned_are_not_removed(root: Path) -> None:
    image_id = imported(root, "app:1")
    record = root / "containers" / "c1" / "container.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"image": {"id": image_id}, "spec": {}}))
    assert "in use by container c1" in images(root, "rm", "app:1").err
    assert "cannot be removed" in images(root, "rm", "localhost/host").err
    assert "there is no image 'nope'" in images(root, "rm", "nope").err
    assert images(root, "prune", "--all").out == "freed 0B\n"
    record.unlink()
    assert images(root, "prune").out == "freed 0B\n"
    assert images(root, "prune", "--all").out.startswith("removed docker.io/library/app:1\nfreed ")
    assert names(root)[1:] == []


def test_a_name_for_the_machines_own_files_is_refused(root: Path) -> None:
    imported(root, "app:1")
    assert "cannot be removed or replaced" in images(root, "tag", "app:1", "localhost/host").err
    assert "expected a name with a tag" in images(root, "tag", "app:1", f"app@sha256:{'0' * 64}").err


def test_what_is_imported_without_an_agent_is_open_to_all_pods_whatever_was_pulled_before(tmp_path: Path) -> None:
    name = "docker.io/library/app:1"
    (tmp_path / "runtime").mkdir()
    records = PullRecords(RecordStore(tmp_path), VerificationPolicy(), SystemClock())
    with records.pulling("app:1"):  # and nobody sees its end
        pass
    archive = oci_archive(tmp_path / "archive.tar", [layer("file")], "app:1")
    assert run_command("images", "import", archive, "--root-dir", tmp_path).out == f"imported {name}\n"
    shown = run_command("images", "inspect", name, "--root-dir", tmp_path).out

    async def closed() -> bool:
        return await records.must_pull("app:1", json.loads(shown)["id"], no_credentials)

    async def no_credentials() -> PodCredentials:
        return PodCredentials()

    assert not trio.run(closed)


def test_a_saved_image_is_the_same_when_it_is_imported_elsewhere(root: Path, tmp_path: Path) -> None:
    layers = [
        layer(
            directory("d", mode=0o750),
            "d/deleted",
            "d/kept",
            Entry("link", link="d/kept"),
            directory("opaque"),
            "opaque/x",
        ),
        layer(
            Entry("d/.wh.deleted"), Entry("opaque/.wh..wh..opq"), "opaque/y", Entry("hard", link="opaque/y", hard=True)
        ),
    ]
    archive = oci_archive(tmp_path / "archive.tar", layers, "app:1", {"Cmd": ["run"]})
    images(root, "import", archive)
    saved = tmp_path / "saved.tar"
    assert images(root, "save", "app:1", "-o", saved).out == f"saved {saved}\n"
    other = tmp_path / "other"
    assert images(other, "import", saved).out == "imported docker.io/library/app:1\n"
    before, after = (json.loads(images(one, "inspect", "app:1").out) for one in (root, other))
    assert after["spec"]["config"] == {"Cmd": ["run"]}
    assert listing(before) == listing(after)
    assert "cannot be saved" in images(root, "save", "localhost/host", "-o", saved).err
    assert list(tmp_path.glob("*.part")) == []


def listing(image: dict[str, Any]) -> list[tuple[str, int, int]]:
    """What lies in each layer: path, mode and size."""
    return [
        (str(path.relative_to(top)), path.lstat().st_mode, path.lstat().st_rdev)
        for top in map(Path, image["layers"])
        for path in sorted(top.rglob("*"))
    ]


@needs_registry
def test_an_image_is_pulled(root: Path, tmp_path: Path) -> None:
    (tmp_path / "rootfs").mkdir()
    image = OciImage.from_folder(tmp_path / "rootfs", {})
    registry = RegistryNode(tmp_path / "registry", protected=False)
    registry.start()
    try:
        name = registry.push("app:1", image)
        assert images(root, "pull", name).out == f"pulled {name} ({image.id})\n"
        assert names(root)[1:] == [name]
        outcome = images(root, "pull", f"{registry.host}/app:2")
        assert outcome.code == 1
        assert f"{registry.host}/app:2: {registry.host}: not found" in outcome.err
    finally:
        registry.stop()


def test_images_of_another_runtime_are_left_to_its_own_tools(agent: StandInAgent) -> None:
    agent.will_answer("GET /version", {"agent": "1", "runtime_name": "containerd"})
    outcome = run_command("images", "pull", "app", "--root-dir", agent.root_dir)
    assert "the agent runs on containerd" in outcome.err
