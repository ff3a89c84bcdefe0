"""The labels of containers' files, as runtimes make them of a policy's defaults and of what pods ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.api import SELinuxOptions
from trikubelet.linux.selinux import ContainerLabels, LabelError

if TYPE_CHECKING:
    from pathlib import Path

FEDORA = ContainerLabels("system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0")
NO_LEVELS = ContainerLabels("system_u:system_r:container_t", "system_u:object_r:container_file_t")
LEVEL = "s0:c123,c456"


def write(root: Path, **files: str) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        (None, ""),
        (SELinuxOptions(), ""),
        (SELinuxOptions(level=LEVEL), "system_u:object_r:container_file_t:s0:c123,c456"),
        # A process has other roles and types than a file: they are not the file's.
        (
            SELinuxOptions(user="user_u", role="user_r", type="spc_t", level=LEVEL),
            "user_u:object_r:container_file_t:s0:c123,c456",
        ),
        # The runtime gives it a level of its own.
        (SELinuxOptions(type="container_t"), ""),
        (SELinuxOptions(user="user_u", role="system_r"), ""),
    ],
)
def test_files_get_the_level_and_the_user_that_the_pod_asks_for(options: SELinuxOptions | None, label: str) -> None:
    assert FEDORA.of_files(options) == label


def test_without_levels_a_label_is_always_known() -> None:
    assert NO_LEVELS.of_files(SELinuxOptions(user="user_u")) == "user_u:object_r:container_file_t"
    assert NO_LEVELS.of_files(SELinuxOptions(level="s0")) == "system_u:object_r:container_file_t:s0"


def test_without_a_policy_for_containers_there_are_no_labels(tmp_path: Path) -> None:
    assert ContainerLabels.read(tmp_path) == ContainerLabels()
    assert ContainerLabels().of_files(SELinuxOptions(level=LEVEL)) == ""
    assert ContainerLabels(file="a:b:c").of_files(SELinuxOptions(level=LEVEL)) == "a:b:c"


def test_defaults_that_are_no_labels_are_told() -> None:
    with pytest.raises(LabelError, match=r"expected a SELinux label .* got 'container_t'"):
        ContainerLabels("container_t", FEDORA.file).of_files(SELinuxOptions(level=LEVEL))


def test_the_policy_for_containers_comes_first(tmp_path: Path) -> None:
    contexts = f'# comment\n; another\n\nprocess = "{FEDORA.process}"\n file="{FEDORA.file}"\nsandbox = x\nno pair\n'
    write(tmp_path, etc__selinux__config="SELINUX=enforcing\n# SELINUXTYPE=mls\nSELINUXTYPE=targeted\n")
    write(tmp_path, etc__selinux__targeted__contexts__lxc_contexts='process = "a:b:c"\nfile = "d:e:f"\n')
    assert ContainerLabels.read(tmp_path) == ContainerLabels("a:b:c", "d:e:f")
    write(tmp_path, usr__share__containers__selinux__contexts=contexts)
    assert ContainerLabels.read(tmp_path) == FEDORA
