"""`python -m tests.guest [--] PYTEST ARGUMENTS`: tests in a virtual machine with systemd and cgroup v2.

For whoever has neither: Debian is made into a disk image once (a few minutes, some 2 GB below `--folder`), booted by
qemu, given this tree, and asked to run pytest. Without `/dev/kvm` the processor is emulated and all takes about ten
times as long, so name what is to run. Needs root, and Debian's debootstrap, e2fsprogs, openssh-client, qemu-system-x86.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT: Final = Path(__file__).resolve().parents[2]
TREE: Final = "/srv/trikubelet"
VENV: Final = "/opt/venv"
CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"
PACKAGES: Final = (
    "apparmor bash-static busybox-static ca-certificates containerd containernetworking-plugins dbus docker-registry "
    "initramfs-tools iproute2 iptables kmod linux-image-cloud-amd64 open-iscsi openssh-server procps python3 "
    "python3-venv runc selinux-policy-default strace systemd systemd-sysv udev uidmap util-linux zstd"
)
UNUSED_SERVICES: Final = ("containerd", "docker-registry")
"""Tests start their own."""
IMAGE_BYTES: Final = 12 << 30
KERNEL: Final = "root=/dev/vda rw console=ttyS0 net.ifnames=0 systemd.unified_cgroup_hierarchy=1 quiet"
MEMORY_MIB: Final = 4096
BOOT_SECONDS: Final = 120.0
EMULATION: Final = 10
"""How much slower an emulated processor is."""
NETWORK: Final = "[Match]\nName=e*\n[Network]\nDHCP=yes\n"
SELINUX: Final = "SELINUX=permissive\nSELINUXTYPE=default\n"
"""What the kernel would forbid is only logged: the machine's own files have no labels."""
DEFAULT_TESTS: Final = (
    "tests/cgroups",
    "tests/node/eviction",
    "tests/node/shutdown",
    "tests/agent/test_cgroups_on_real_runtimes.py",
    "tests/embedded/test_keeper_cgroups.py",
    "tests/embedded/test_cgroup_writes.py",
    "tests/embedded/test_created.py",
    "tests/embedded/test_on_any_runtime.py",
    "tests/embedded/test_pods_on_any_runtime.py",
    "tests/embedded/test_apparmor_on_kernel.py",
    "tests/embedded/escapes",
    "tests/agent/test_resource_managers.py",
    "tests/volumes/scsi/test_on_target.py",
)
"""What depends on the version of cgroups, on systemd, or on a kernel with AppArmor or an iSCSI target."""
SELINUX_TESTS: Final = ("tests/embedded/test_selinux_on_kernel.py",)


def main() -> int:
    """The exit code of pytest in the guest."""
    parser = argparse.ArgumentParser(prog="python -m tests.guest", description=__doc__)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trikubelet-guest"
    parser.add_argument("--folder", type=Path, default=default, help="where the guest's disk is (%(default)s)")
    parser.add_argument("--selinux", action="store_true", help="the kernel runs SELinux in place of AppArmor")
    parser.add_argument("--shell", action="store_true", help="a shell in the guest instead of tests")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    chosen = parser.parse_args()
    tests = chosen.arguments or (SELINUX_TESTS if chosen.selinux else DEFAULT_TESTS)
    lacking = [name for name in ("debootstrap", "mke2fs", "qemu-system-x86_64", "ssh") if shutil.which(name) is None]
    if lacking or os.geteuid():
        parser.error(f"needs root, and these programs, which were not found: {', '.join(lacking) or 'none'}")
    disk = chosen.folder / "disk.img"
    if not disk.exists():
        build(chosen.folder, disk)
    with booted(chosen.folder, disk, "security=selinux selinux=1" if chosen.selinux else "") as ssh:
        if chosen.shell:
            return subprocess.run([*ssh, "-t", f"cd {TREE}; exec bash"], check=False).returncode
        command = shlex.join([f"{VENV}/bin/python", "-m", "pytest", "-p", "no:cacheprovider", *tests])
        slower = 1 if kvm() else EMULATION
        return subprocess.run([*ssh, f"cd {TREE} && TESTS_SLOWER={slower} {command}"], check=False).returncode


def build(folder: Path, disk: Path) -> None:
    """Make the disk image, and beside it what boots it and lets us in."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES.split())}", "bookworm", str(root))
    key = folder / "key"
    if not key.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    for name, text in {
        "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
        "etc/hostname": "guest\n",
        "etc/hosts": "127.0.0.1 localhost guest\n",
        "etc/selinux/config": SELINUX,
        "etc/resolv.conf": Path("/etc/resolv.conf").read_text(),
        "etc/systemd/network/80-dhcp.network": NETWORK,
        "root/.ssh/authorized_keys": key.with_suffix(".pub").read_text(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if Path("/", CERTIFICATES).exists():  # registries of one's own
        shutil.copy(Path("/", CERTIFICATES), root / CERTIFICATES)
    if kubectl := shutil.which("kubectl"):
        shutil.copy(kubectl, root / "usr/local/bin")
    run("chroot", str(root), "systemctl", "-q", "enable", "ssh", "systemd-networkd")
    run("chroot", str(root), "systemctl", "-q", "disable", *UNUSED_SERVICES)
    run("chroot", str(root), "python3", "-m", "venv", VENV)
    (root / TREE[1:] / "trikubelet").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "trikubelet/__init__.py"):  # all that an editable install reads
        shutil.copy(PROJECT / name, root / TREE[1:] / name)
    run("chroot", str(root), f"{VENV}/bin/pip", "install", "--quiet", "--editable", f"{TREE}[dev]")
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(next((root / "boot").glob(f"{name}-*")), folder / name)
    unfinished = disk.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with unfinished.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(unfinished))
    unfinished.rename(disk)
    shutil.rmtree(root)


@contextmanager
def booted(folder: Path, disk: Path, parameters: str) -> Iterator[list[str]]:
    """A guest that has this tree, as the words with which a command begins that is run in it. It forgets what was
    written. `parameters`: the kernel's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    qemu = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-accel", "kvm" if kvm() else "tcg,thread=multi", "-cpu", "max"),
            *("-smp", str(os.cpu_count()), "-m", str(MEMORY_MIB), "-display", "none", "-no-reboot", "-snapshot"),
            *("-serial", f"file:{folder / 'console.log'}"),
            *("-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img")),
            *("-append", f"{KERNEL} {parameters}"),
            *("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"),
            *("-netdev", f"user,id=n,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=n"),
        ]
    )
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=5", "LogLevel=ERROR")
    ssh = ["ssh", "-i", str(folder / "key"), "-p", str(port)]
    ssh += [word for option in options for word in ("-o", option)] + ["root@127.0.0.1"]
    try:
        give_up = time.monotonic() + BOOT_SECONDS * (1 if kvm() else EMULATION)
        while subprocess.run([*ssh, "true"], capture_output=True, check=False).returncode:
            if qemu.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"the guest does not answer; what it said: {folder / 'console.log'}")
            time.sleep(1)
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT,
            capture_output=True,
            check=True,
        ).stdout
        packed = subprocess.run(
            ["tar", "-cz", "--ignore-failed-read", "--null", "-T", "-"],
            cwd=PROJECT,
            input=files,
            capture_output=True,
            check=True,
        ).stdout
        subprocess.run([*ssh, f"tar -xz -C {TREE}"], input=packed, check=True)
        yield ssh
    finally:
        qemu.terminate()
        qemu.wait()


def kvm() -> bool:
    """Whether the processor can be used as it is."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.W_OK) and not {"vmx", "svm"}.isdisjoint(flags)


def run(*command: str) -> None:
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
