"""Kubeconfigs: from a file to everything that is needed to reach an API server, and back for a node that was let in.

`parse_kubeconfig` is pure. Its result, `ClusterAccess`, holds certificates, keys and tokens as the bytes that stood in
the file, or as the paths of files that may change while the agent runs and are read by `credentials.py`. Whether those
files can be read is not looked at here: a certificate that is still to be requested is missing, and comes.
`missing_files` tells, for checks before the start.

As in the kubelet there is one file, and no merging of several (`KUBECONFIG`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from trikubelet.api import DecodeError, Problem, from_dict
from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import Document, YamlError, read_documents
from trikubelet.kube_client.kubeconfig_schema import IF_AVAILABLE, Chosen, Kubeconfig, choose, split_server
from trikubelet.linux.durable_files import write_atomically

MAX_SIZE: Final = 10 * 2**20
EXEC_CONFIG_EXTENSION: Final = "client.authentication.k8s.io/exec"
"""The cluster's extension that is meant for plugins."""

_SECRET: Final = re.compile(r"(^|\.)(token|password|client-key-data|value)$")


@frozen
class KubeconfigError(Exception):
    """A kubeconfig cannot be used."""

    file: Path
    problems: tuple[str, ...]
    """Each with line and field where there is one. Never empty."""

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.file}: invalid configuration: {self.problems[0]}"
        return f"{self.file}: invalid configuration: [{', '.join(self.problems)}]"


@frozen
class TlsSettings:
    """How the server proves that it is the right one. Bytes are PEM, paths are files with PEM."""

    authority: bytes | Path | None = None
    """None: the authorities that the system trusts."""
    server_name: str = ""
    """Expected in the certificate instead of the host of the URL."""
    insecure: bool = False
    """The server's certificate is not verified."""


@frozen
class ExecSettings:
    """A program that knows credentials."""

    command: str
    """A path, or a name that is looked for in PATH."""
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = IF_AVAILABLE
    cluster_config: Mapping[str, Any] | None = None
    """What the kubeconfig has for plugins about this cluster."""


@frozen
class CredentialSettings:
    """How the client authenticates. All that is set is used, except that a plugin is not asked when something else
    is."""

    certificate: bytes | Path | None = None
    key: bytes | Path | None = attrs.field(default=None, repr=lambda key: str(key) if isinstance(key, Path) else "…")
    token: str = attrs.field(default="", repr=False)
    token_file: Path | None = None
    """Goes before `token`."""
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    exec: ExecSettings | None = None

    @property
    def plugin(self) -> ExecSettings | None:
        """The program to ask, when no other credential is set."""
        others = self.certificate or self.token or self.token_file or self.username or self.password
        return None if others else self.exec


@frozen
class ClusterAccess:
    """Where an API server is, how to verify it, and the user's credentials."""

    server: str
    """`https://host:port`, perhaps with a path; no slash at the end."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    credentials: CredentialSettings = attrs.field(factory=CredentialSettings)
    proxy_url: str = attrs.field(default="", repr=False)
    """Empty: what the environment says (`HTTPS_PROXY`)."""
    disable_compression: bool = False
    file: Path | None = attrs.field(default=None, eq=False)
    """The kubeconfig that says all this, for messages."""


def read_kubeconfig(file: Path) -> ClusterAccess:
    """Read and check a kubeconfig. Blocks on the disk. Raises KubeconfigError."""
    try:
        if file.stat().st_size > MAX_SIZE:
            raise KubeconfigError(file, (f"expected at most {MAX_SIZE >> 20} MiB",))
        raw = file.read_bytes()
    except OSError as error:
        raise KubeconfigError(file, (f"cannot be read: {error.strerror or error}",)) from error
    return parse_kubeconfig(raw, file)


def parse_kubeconfig(raw: bytes, file: Path) -> ClusterAccess:
    """What the current context of a kubeconfig says. Relative paths start at the folder of `file`.

    Raises KubeconfigError with all that is wrong, by line and field.
    """
    try:
        documents = [document for document in read_documents(raw) if not document.empty]
        if len(documents) != 1:
            raise KubeconfigError(file, (f"expected one document, got {len(documents)}",))
        data = documents[0].data()
    except YamlError as error:
        raise KubeconfigError(file, (str(error),)) from None
    try:
        config = from_dict(Kubeconfig, data)
    except DecodeError as error:
        problems = [_without_secret(problem) for problem in error.problems]
        raise KubeconfigError(file, _placed(problems, documents[0])) from None
    chosen = choose(config)
    if not isinstance(chosen, Chosen):
        raise KubeconfigError(file, _placed(chosen, documents[0]))
    return _access(chosen, file)


def _placed(problems: list[Problem], document: Document) -> tuple[str, ...]:
    def place(problem: Problem) -> str:
        if not problem.path:
            return problem.message
        return f"line {document.line_of(problem.path)}: {problem.path}: {problem.message}"

    return tuple(place(problem) for problem in problems)


def _without_secret(problem: Problem) -> Problem:
    """Problems quote the values that they are about."""
    if _SECRET.search(problem.path):
        kind = "base64 text" if problem.path.endswith("-data") else "a string; put quotes around it"
        return Problem(problem.path, f"expected {kind}")
    return problem


def _access(chosen: Chosen, file: Path) -> ClusterAccess:
    folder = Path(os.path.abspath(file)).parent  # noqa: PTH100 - links stay: files are beside the name that was given
    cluster, user = chosen.cluster, chosen.user
    url = split_server(cluster.server)
    if url is None:
        raise ValueError(f"expected a checked URL, got {cluster.server!r}")
    server = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}"
    if url.scheme == "http":
        # Like kubectl: nothing that identifies us goes over a connection that everybody can read.
        plain = CredentialSettings()
        return ClusterAccess(server, TlsSettings(), plain, cluster.proxy_url, cluster.disable_compression, file)

    def file_or_data(name: str, content: bytes) -> bytes | Path | None:
        return content or (folder / name if name else None)

    credentials = CredentialSettings(
        certificate=file_or_data(user.client_certificate, user.client_certificate_data),
        key=file_or_data(user.client_key, user.client_key_data),
        token=user.token,
        token_file=folder / user.token_file if user.token_file else None,
        username=user.username,
        password=user.password,
        exec=_exec_settings(chosen, folder),
    )
    authority = file_or_data(cluster.certificate_authority, cluster.certificate_authority_data)
    tls = TlsSettings(authority, cluster.tls_server_name, cluster.insecure_skip_tls_verify)
    return ClusterAccess(server, tls, credentials, cluster.proxy_url, cluster.disable_compression, file)


def _exec_settings(chosen: Chosen, folder: Path) -> ExecSettings | None:
    plugin = chosen.user.exec
    if plugin is None:
        return None
    command = plugin.command
    if "/" in command:
        command = str(folder / command)
    extensions = {entry.name: entry.extension for entry in chosen.cluster.extensions}
    return ExecSettings(
        command=command,
        api_version=plugin.api_version,
        args=plugin.args,
        env=tuple((variable.name, variable.value) for variable in plugin.env),
        install_hint=plugin.install_hint,
        provide_cluster_info=plugin.provide_cluster_info,
        interactive_mode=plugin.interactive_mode or IF_AVAILABLE,
        cluster_config=extensions.get(EXEC_CONFIG_EXTENSION),
    )


def missing_files(access: ClusterAccess) -> tuple[str, ...]:
    """What is wrong with the files that are named, one sentence each. Opens them; blocks on the disk."""
    named = (
        ("certificate-authority", access.tls.authority),
        ("client-cert", access.credentials.certificate),
        ("client-key", access.credentials.key),
        ("tokenFile", access.credentials.token_file),
    )
    problems = []
    for what, path in named:
        if isinstance(path, Path):
            try:
                path.open("rb").close()
            except OSError as error:
                problems.append(f"unable to read {what} {path} due to {error.strerror or error}")
    return tuple(problems)


def write_bootstrapped(file: Path, bootstrap: ClusterAccess, pem: Path) -> None:
    """Write the kubeconfig of a node that was let in: the bootstrap's cluster, and `pem` as certificate and key.

    The names in it are those that the kubelet writes. Only root may read it. The file is complete or not there at all,
    also after a crash. Blocks on the disk; raises OSError.
    """
    import yaml

    text = yaml.safe_dump(_bootstrapped(bootstrap, pem), sort_keys=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode())


def _bootstrapped(bootstrap: ClusterAccess, pem: Path) -> dict[str, Any]:
    from base64 import b64encode

    cluster: dict[str, Any] = {"server": bootstrap.server}
    tls = bootstrap.tls
    if isinstance(tls.authority, Path):
        cluster["certificate-authority"] = str(tls.authority)
    elif tls.authority:
        cluster["certificate-authority-data"] = b64encode(tls.authority).decode()
    if tls.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if tls.server_name:
        cluster["tls-server-name"] = tls.server_name
    if bootstrap.proxy_url:
        cluster["proxy-url"] = bootstrap.proxy_url
    if bootstrap.disable_compression:
        cluster["disable-compression"] = True
    context = {"cluster": "default-cluster", "user": "default-auth", "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": {"client-certificate": str(pem), "client-key": str(pem)}}],
        "contexts": [{"name": "default-context", "context": context}],
        "current-context": "default-context",
    }
