"""betterproto is loaded without what messages do not need, and works as it does."""

from __future__ import annotations

import subprocess
import sys

UNUSED = ("asyncio", "email.parser", "zipfile", "importlib.metadata", "dateutil", "multidict", "typing_extensions")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_messages_need_no_asyncio() -> None:
    found = run(
        f"import sys, trikubelet.rpc.cri.v1, trikubelet.rpc.csi.v1; print(sorted(set({UNUSED}) & sys.modules.keys()))"
    )
    assert found == "[]"


def test_who_asks_for_what_is_left_out_gets_it() -> None:
    assert (
        run(
            "import trikubelet.rpc.cri.v1, betterproto, betterproto._version\n"
            "from betterproto.grpc.grpclib_client import ServiceStub\n"
            "print(betterproto._version.__version__[:2], ServiceStub.__module__)"
        )
        == "2. betterproto.grpc.grpclib_client"
    )


def test_a_betterproto_that_is_there_stays_as_it_is() -> None:
    assert (
        run(
            "import betterproto\n"
            "stub = betterproto.ServiceStub\n"
            "import trikubelet.rpc.cri.v1\n"
            "print(betterproto.ServiceStub is stub)"
        )
        == "True"
    )


def test_metadata_and_messages_from_json_work() -> None:
    assert (
        run(
            "from trikubelet.rpc.grpc.metadata import decode_metadata\n"
            "import betterproto\n"
            "print(dict(decode_metadata([(b'a', b'b')])), betterproto.isoparse('2026-01-02T03:04:05Z').isoformat())\n"
            "from betterproto.lib.google.protobuf import Timestamp\n"
            "print(bytes(Timestamp(seconds=1)))"
        )
        == "{'a': 'b'} 2026-01-02T03:04:05+00:00\nb'\\x08\\x01'"
    )
