"""A CSI driver whose volumes are folders and files: Identity, Node and Registration over gRPC.

In a test's own process, on any stream or socket:

    driver = FolderDriver(tmp_path / "storage", name="folder.example.com")
    await nursery.start(Server(driver.services).serve_unix, socket)

As a program, for an agent that runs as one:

    python -m tests.csi_driver --socket … --registry ROOT/plugins_registry --storage … --log calls.jsonl --faults f.json

Volumes come into being when they are first named. `faults` make calls fail, hang or lose their reply; `calls` (and the
log) have every request with all that is in it: this is for tests, whose secrets are none.
"""

from tests.csi_driver.driver import CAPABILITIES, FolderDriver
from tests.csi_driver.faults import Fault, FaultFile, Faults
from tests.csi_driver.storage import BindMounts, NoMounts, Storage

__all__ = ["CAPABILITIES", "BindMounts", "Fault", "FaultFile", "Faults", "FolderDriver", "NoMounts", "Storage"]
