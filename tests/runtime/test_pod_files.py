"""Removing what pods leave in the node's folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.embedded.escapes.attack import nest
from trikubelet.api import ObjectMeta, Pod, PodSpec
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles

if TYPE_CHECKING:
    from pathlib import Path


async def test_logs_of_a_pod_are_removed_however_deep_its_folders_are(tmp_path: Path) -> None:
    """A container that has the folder by a hostPath can make any in there."""
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    (logs / "pod" / "main").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (logs / "pod" / "link").symlink_to(elsewhere)
    nest(logs / "pod" / "main", 1500)
    files = PodFiles(RuntimeOptions(root_dir=tmp_path, machine=MachineFacts(1), pod_logs_dir=logs))
    await files.remove_pod_logs("pod")
    assert list(logs.iterdir()) == []
    assert (elsewhere / "kept").exists()
    await files.remove_pod_logs("pod")  # once more does no harm


def make_pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=PodSpec(containers=()))


def files_of(tmp_path: Path, root: str = "root", **options: Any) -> PodFiles:
    folder = tmp_path / root
    folder.mkdir(exist_ok=True)
    return PodFiles(
        RuntimeOptions(
            root_dir=folder,
            machine=MachineFacts(1),
            **{"pod_logs_dir": folder / "pod-logs", "legacy_log_symlinks_dir": tmp_path / "links", **options},
        )
    )


async def test_logs_of_an_older_versions_pods_stay_where_they_are_until_the_pods_end(tmp_path: Path) -> None:
    """Another agent's folders, and those of a kubelet, lie beside them."""
    shared, pod, new = tmp_path / "var-log-pods", make_pod("old"), make_pod("new")
    files_of(tmp_path, pod_logs_dir=shared).make_pod_logs_directory(pod)
    files_of(tmp_path, "other", pod_logs_dir=shared).make_pod_logs_directory(make_pod("others"))
    (shared / "default_kubelets_uid-kubelets").mkdir()
    foreign = {path.name for path in shared.iterdir()} - {name_of(pod)}
    files = files_of(tmp_path, earlier_logs_dir=shared, alone=True)
    assert files.logs_dir_of(pod) == shared
    assert files.logs_dir_of(new) == tmp_path / "root" / "pod-logs"
    for each in (pod, new, make_pod("kubelets"), make_pod("others")):
        files.make_pod_logs_directory(each)
    assert sorted(files.pod_log_directories()) == sorted(
        map(name_of, map(make_pod, ("old", "new", "kubelets", "others")))
    )
    for name in files.pod_log_directories():
        await files.remove_pod_logs(name)
    assert {path.name for path in shared.iterdir()} == foreign
    assert list((tmp_path / "root" / "pod-logs").iterdir()) == []
    assert files.logs_dir_of(pod) == tmp_path / "root" / "pod-logs"


def test_an_agent_by_itself_leaves_the_mark_of_another_on_a_log_folder(tmp_path: Path) -> None:
    shared, pod = tmp_path / "shared", make_pod("web")
    files_of(tmp_path, "other", pod_logs_dir=shared).make_pod_logs_directory(pod)
    files_of(tmp_path, pod_logs_dir=shared, alone=True).make_pod_logs_directory(pod)
    assert files_of(tmp_path, "other", pod_logs_dir=shared).pod_log_directories() == [name_of(pod)]
    files_of(tmp_path, pod_logs_dir=shared).make_pod_logs_directory(pod)  # in a cluster the pod is the node's
    assert files_of(tmp_path, pod_logs_dir=shared).pod_log_directories() == [name_of(pod)]


def test_a_root_folder_that_moved_behind_a_symlink_keeps_its_log_folders(tmp_path: Path) -> None:
    shared, pod = tmp_path / "shared", make_pod("web")
    files_of(tmp_path, pod_logs_dir=shared).make_pod_logs_directory(pod)
    (tmp_path / "root").rename(tmp_path / "data")
    (tmp_path / "root").symlink_to("data")
    assert files_of(tmp_path, pod_logs_dir=shared).pod_log_directories() == [name_of(pod)]


def test_an_agent_by_itself_removes_its_own_dangling_links_only(tmp_path: Path) -> None:
    pod, links = make_pod("web"), tmp_path / "links"
    links.mkdir()
    own = files_of(tmp_path, alone=True)
    own.make_pod_logs_directory(pod)
    targets = {
        "own.log": own.logs_dir_of(pod) / name_of(pod) / "main" / "0.log",
        "own-gone.log": own.logs_dir_of(pod) / "default_gone_uid-gone" / "main" / "0.log",
        "kubelets-gone.log": tmp_path / "var-log-pods" / "default_gone_uid-gone" / "main" / "0.log",
    }
    for name, target in targets.items():
        (links / name).symlink_to(target)
    assert {link.name for link in own.dangling_symlinks()} == {"own.log", "own-gone.log"}
    named = files_of(tmp_path, alone=True, pod_logs_dir=tmp_path / "var-log-pods")
    assert "kubelets-gone.log" not in {link.name for link in named.dangling_symlinks()}
    node = files_of(tmp_path, pod_logs_dir=tmp_path / "var-log-pods")
    assert "kubelets-gone.log" in {link.name for link in node.dangling_symlinks()}, "the kubelet removes it, too"


def name_of(pod: Pod) -> str:
    return f"default_{pod.metadata.name}_{pod.metadata.uid}"
