"""What only the embedded runtime offers: images of its own, and work without any rights."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.oci_image import OciImage, digest, make_root_folder, write_oci_archive
from tests.patience import PATIENCE
from tests.registry_node import PASSWORD, USER, RegistryNode, needs_registry
from trikubelet.cli.failures import CommandError
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.real_node import RealNode

UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An image `localhost/small:1` with nothing but busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox: apt-get install busybox-static")
    root = tmp_path / "small-root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    (root / "in-image").write_text("yes\n")
    path = tmp_path / "small.tar"
    write_oci_archive(path, root, "localhost/small:1", {"Cmd": ["/bin/sh", "-c", "exit 5"], "Env": ["FROM=image"]})
    return path


@pytest.mark.root
def test_an_image_is_missing_until_it_is_imported(embedded_node: RealNode, archive: Path) -> None:
    node = embedded_node
    script = 'read in </in-image; echo "$FROM $in"; trap "exit 0" TERM; while :; do busybox sleep 0.1; done'
    small = {**node.container(script), "image": "localhost/small:1"}
    node.run("early", small)
    node.start()

    def reason() -> str:
        waiting = node.status("early").state.waiting
        return "" if waiting is None else waiting.reason

    node.until(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), "the image is missing")
    assert "trikubelet images import" in node.cli("describe", "pod", "early").stdout
    node.delete("early")
    pulls = RecordStore(node.root)
    pulls.write_intent("localhost/small:1")  # as one leaves it whose end nobody saw
    imported = node.cli("images", "import", str(archive))
    assert "localhost/small:1" in imported.stdout, imported.stderr
    assert pulls.before("localhost/small:1").image_ref, "it counts as one that was there before that pull"
    assert "localhost/small:1" in node.cli("images", "list").stdout
    node.run("late", small)
    node.until_running("late")
    node.until(lambda: node.lines("late"), "the container wrote a line")
    assert node.lines("late") == ["image yes"]
    page = b"".join(node.client.blocks("/metrics")).decode()
    assert "\nkubelet_imagemanager_ondisk_pullintents 1" in page
    assert 'kubelet_imagemanager_image_mustpull_checks_total{result="credentialPolicyAllowed"}' in page


@pytest.mark.root
@pytest.mark.parametrize("policy", ["Always", "IfNotPresent", "Never"])
def test_a_pod_that_waits_for_its_image_starts_when_it_is_imported(
    embedded_node: RealNode, archive: Path, policy: str
) -> None:
    """Not when its back-off of ten seconds or more is over."""
    node = embedded_node
    node.run("early", {**node.container(UNTIL_TERM), "image": "localhost/small:1", "imagePullPolicy": policy})
    node.start()
    wanted = "ErrImageNeverPull" if policy == "Never" else "ImagePullBackOff"

    def reason() -> str:
        waiting = node.status("early").state.waiting
        return "" if waiting is None else waiting.reason

    node.until(lambda: reason() == wanted, f"the pod waits with {wanted}")
    assert node.cli("images", "import", str(archive)).returncode == 0
    began = time.monotonic()
    node.until_running("early")
    assert time.monotonic() - began < 5


@pytest.mark.root
@needs_registry
@pytest.mark.parametrize("protected", [False, True])
def test_a_pods_image_comes_from_a_registry(embedded_node: RealNode, tmp_path: Path, protected: bool) -> None:
    """From a protected one with the credentials of the node."""
    node = embedded_node
    (tmp_path / "pulled-root").mkdir()
    image = OciImage.from_folder(make_root_folder(tmp_path / "pulled-root"), {"Cmd": ["sh", "-c", UNTIL_TERM]})
    registry = RegistryNode(tmp_path / "registry", protected=protected)
    registry.start()
    try:
        name = registry.push("team/app:1", image)
        node.root.mkdir()
        login = {"username": USER, "password": PASSWORD} if protected else {}
        (node.root / "config.json").write_text(json.dumps({"auths": {registry.host: login} if login else {}}))
        node.run("web", {"name": "main", "image": name})
        node.start()
        node.until_running("web")
        assert node.status("web").image_id == f"{registry.host}/team/app@{digest(image.manifest)}"
        assert name in node.cli("images", "list").stdout
        assert "Successfully pulled image" in node.cli("describe", "pod", "web").stdout
    finally:
        registry.stop()


@pytest.mark.root
def test_an_image_is_a_volume(embedded_node: RealNode, archive: Path) -> None:
    node = embedded_node
    node.start()
    assert node.cli("images", "import", str(archive)).returncode == 0
    mounts = [{"name": "files", "mountPath": "/files"}, {"name": "files", "mountPath": "/bin-of-it", "subPath": "bin"}]
    volume = {"name": "files", "image": {"reference": "localhost/small:1", "pullPolicy": "IfNotPresent"}}
    script = "cat /files/in-image; ls /bin-of-it; " + UNTIL_TERM
    node.run("reader", node.container(script, volumeMounts=mounts), volumes=[volume])
    node.until_running("reader")
    node.until(lambda: len(node.lines("reader")) == 3, "the container read its volume")
    assert node.lines("reader") == ["yes", "busybox", "sh"]


@pytest.mark.root
def test_an_agent_without_any_rights_runs_pods(unprivileged_node: RealNode) -> None:
    """It says once that it cannot have the cgroups that are asked for."""
    node = unprivileged_node
    node.configure(cgroupsPerQOS=True, enforceNodeAllocatable=["pods"])
    mount = [{"name": "work", "mountPath": "/work"}]
    node.run(
        "small",
        node.container("cat /work/greeting; " + UNTIL_TERM, volumeMounts=mount),
        initContainers=[node.container("echo hello > /work/greeting", "greet", volumeMounts=mount)],
        volumes=[{"name": "work", "emptyDir": {}}],
    )
    unreadable = node.manifests / "unreadable.json"
    unreadable.touch()
    unreadable.chmod(0)
    node.start()
    node.until_running("small")
    node.until(lambda: node.lines("small"), "the container wrote a line")
    assert node.lines("small") == ["hello"]
    report = "unreadable.json: cannot be read: Permission denied"
    node.until(lambda: report in node.told(), "the unreadable file is reported")
    assert sum("without cgroups" in line["event"] for line in node.log()) == 1
    node.delete("small")
    node.until_gone("small")


@pytest.mark.root
def test_watched_pods_are_told_with_every_change(embedded_node: RealNode) -> None:
    node = embedded_node
    node.start()
    node.run("web", node.container(UNTIL_TERM))
    node.until_running("web")
    watcher = node.follow("pods", "--watch", "-o", "json")
    node.until(lambda: changes(node.followed()) == [("ADDED", "Running")], "the pod is told")
    node.delete("web")
    node.until(lambda: [kind for kind, _ in changes(node.followed())][-1] == "DELETED", "the pod's end is told")
    watcher.terminate()
    assert watcher.wait(PATIENCE) != 0
    assert changes(node.followed())[1] == ("MODIFIED", "Running")


def changes(text: str) -> list[tuple[str, str]]:
    """Kind and phase of each change in a stream of JSON documents, the last of which may be half-written."""
    found = []
    decoder, start = json.JSONDecoder(), 0
    while start < len(text):
        try:
            change, start = decoder.raw_decode(text, start)
        except ValueError:
            break
        start += 1
        found.append((change["type"], change["object"]["status"]["phase"]))
    return found


@pytest.mark.root
def test_a_checkpoint_is_refused_in_the_words_that_clients_look_for(embedded_node: RealNode) -> None:
    node = embedded_node
    node.run("web", node.container(UNTIL_TERM))
    node.start()
    pod = node.until_running("web")
    where = f"default/{pod.metadata.name}/main"
    with pytest.raises(CommandError) as refused:
        node.client.post(f"/checkpoint/{where}")
    assert str(refused.value) == (
        f"checkpointing of {where} failed (rpc error: code = Unimplemented desc = "
        "unknown method CheckpointContainer for service runtime.v1.RuntimeService)"
    )
