"""What an agent has in memory that it never uses."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import trikubelet.cli.run, trikubelet.agent.run, trikubelet.agent.service, trikubelet.embedded.runtime
import trikubelet.kube_client.client, trikubelet.agent.cluster
from trikubelet.telemetry.logs import configure_logging, get_logger
for form in ("text", "json"):
    configure_logging(form, 4)
    get_logger("agent").info("a line")
print([name for name in sys.argv[1:] if name in sys.modules])
"""
UNUSED = [
    "asyncio",
    "cryptography",
    "OpenSSL",
    "betterproto.lib.google.protobuf",
    "dateutil",
    "difflib",
    "email.parser",
    "greenlet",
    "h2",
    "html",
    "httpcore",
    "httpx",
    "importlib.metadata",
    "idna",
    "jeepney",
    "multidict",
    "prometheus_client",
    "pygments",
    "rich",
    "structlog",
    "sysconfig",
    "typing_extensions",
    "urllib.request",
    "zipfile",
]


def test_what_an_agent_of_a_cluster_does_not_use_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *UNUSED], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


ALONE = """
import sys
import trikubelet.cli.run, trikubelet.agent.run, trikubelet.agent.service, trikubelet.embedded.runtime
print([name for name in ("_hashlib", "_ssl") if name in sys.modules])
import trio
async def main():
    ours, theirs = trio.testing.memory_stream_pair()
    import ssl
    stream = trio.SSLStream(ours, ssl.create_default_context(), server_hostname="localhost")
    async with trio.open_nursery() as nursery:
        @nursery.start_soon
        async def peer():
            await theirs.receive_some(1)
            await theirs.send_all(b"no TLS at all")
            await theirs.aclose()
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            print(type(error.__cause__).__name__)
import trio.testing
trio.run(main)
"""


def test_an_agent_without_a_cluster_needs_no_openssl_until_it_speaks_tls() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "SSLError"], done.stderr


def test_httpx_is_loaded_without_its_command() -> None:
    program = (
        "import sys; from trikubelet.http.httpx_library import httpx\n"
        "print(httpx.URL('http://a/b').path, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "/b False", done.stderr
