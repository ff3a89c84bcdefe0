"""The serving certificate of a node's own making, for where nobody gives it one.

It is made once in a node's life, by a process of its own that ends with it: the agent need not keep `cryptography`,
which is large, for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

import trio

from trikubelet.kube_client.certificates.store import CertificateError
from trikubelet.linux.durable_files import write_atomically

MADE_WITHIN: Final = 30.0
"""Seconds that the process may take."""


async def self_signed_files(folder: Path, host: str, now: datetime) -> tuple[Path, Path]:
    """Certificate and key of the node's own making: `kubelet.crt` and `kubelet.key`, kept once they are there.

    Raises CertificateError when only one of them can be read, or they cannot be made.
    """
    certificate, key = paths = folder / "kubelet.crt", folder / "kubelet.key"
    readable = [os.access(path, os.R_OK) for path in paths]
    if any(readable) and not all(readable):
        problem = key if readable[0] else certificate
        raise CertificateError(f"error reading {problem}, certificate and key must be supplied as a pair")
    if not any(readable):
        await _make(folder, host, now)
    return paths


async def _make(folder: Path, host: str, now: datetime) -> None:
    command = [sys.executable, "-P", "-m", __name__, str(folder), host, now.isoformat()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        with trio.fail_after(MADE_WITHIN):
            done = await trio.run_process(
                command, env=environment, check=False, capture_stdout=True, stderr=subprocess.STDOUT
            )
    except trio.TooSlowError:
        raise CertificateError(f"no certificate was made within {MADE_WITHIN:.0f} seconds") from None
    except OSError as error:
        raise CertificateError(f"no certificate was made: {sys.executable}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise CertificateError(said[-1] if said else f"no certificate was made: exit code {done.returncode}")


def write_self_signed(folder: Path, host: str, now: datetime) -> None:
    """Make both files. Raises OSError."""
    from trikubelet.kube_client.certificates.signing import self_signed

    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    chain, secret = self_signed(host, now)
    write_atomically(folder / "kubelet.key", secret)
    certificate = folder / "kubelet.crt"
    write_atomically(certificate, chain)
    certificate.chmod(0o644)


if __name__ == "__main__":
    write_self_signed(Path(sys.argv[1]), sys.argv[2], datetime.fromisoformat(sys.argv[3]))
