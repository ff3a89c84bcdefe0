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
    "email.parser",
    "greenlet",
    "h2",
    "html",
    "httpcore",
    "httpx",
    "importlib.metadata",
    "jeepney",
    "prometheus_client",
    "pygments",
    "rich",
    "structlog",
    "urllib.request",
    "zipfile",
]


def test_what_an_agent_of_a_cluster_does_not_use_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *UNUSED], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_httpx_is_loaded_without_its_command() -> None:
    program = (
        "import sys; from trikubelet.http.httpx_library import httpx\n"
        "print(httpx.URL('http://a/b').path, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "/b False", done.stderr
