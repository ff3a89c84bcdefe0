"""The serving certificate of a node's own making, for where nobody gives it one.

It is made once in a node's life, by a process of its own that ends with it: the agent need not keep `cryptography`,
which is large, for that.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.kube_client.certificates.reading import certificate_blocks
from trikubelet.kube_client.certificates.store import CertificateError, private_key_block
from trikubelet.linux.durable_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

MADE_WITHIN: Final = 30.0
"""Seconds that the process may take."""


async def self_signed_files(folder: Path, host: str, now: datetime) -> tuple[Path, Path]:
    """Certificate and key of the node's own making: `kubelet.crt` and `kubelet.key`, kept once they are there.

    Raises CertificateError when only one of them can be read, or they cannot be made, and OSError.
    """
    certificate, key = paths = folder / "kubelet.crt", folder / "kubelet.key"
    readable = [os.access(path, os.R_OK) for path in paths]
    if any(readable) and not all(readable):
        problem = key if readable[0] else certificate
        raise CertificateError(f"error reading {problem}, certificate and key must be supplied as a pair")
    if not any(readable):
        write_pair(folder, *await _make(host, now))
    return paths


async def _make(host: str, now: datetime) -> tuple[bytes, bytes]:
    """Certificates and key. Raises CertificateError."""
    command = [sys.executable, "-P", "-m", __name__, host, now.isoformat()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        with trio.fail_after(MADE_WITHIN):
            # In a session of its own: a Ctrl-C is for the agent.
            done = await trio.run_process(
                command, env=environment, check=False, capture_stdout=True, capture_stderr=True, start_new_session=True
            )
    except trio.TooSlowError:
        raise CertificateError(f"no certificate was made within {MADE_WITHIN:.0f} seconds") from None
    except OSError as error:
        raise CertificateError(f"no certificate was made: {sys.executable}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CertificateError(f"no certificate was made: {said[-1] if said else f'exit code {done.returncode}'}")
    return b"".join(certificate_blocks(done.stdout)), private_key_block(done.stdout)


def write_pair(folder: Path, chain: bytes, key: bytes) -> None:
    """The key first: who finds the certificate finds both. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    write_atomically(folder / "kubelet.key", key)
    certificate = folder / "kubelet.crt"
    write_atomically(certificate, chain)
    certificate.chmod(0o644)


def main(host: str, now: str) -> None:
    """Tell certificates and key on the standard output."""
    from trikubelet.kube_client.certificates.signing import self_signed

    sys.stdout.buffer.write(b"".join(self_signed(host, datetime.fromisoformat(now))))


if __name__ == "__main__":
    main(*sys.argv[1:])
