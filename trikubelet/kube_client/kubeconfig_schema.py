"""A kubeconfig as it is written, and what can be wrong with the part of it that is used.

Only the context that is used is looked at, with its cluster and its user: a kubeconfig may well hold others that only
work elsewhere. Every mistake is named at once, with its field. The sentences are those of kubectl and the kubelet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from attrs import field

from trikubelet.api import Problem
from trikubelet.api.name_formats import dns_label
from trikubelet.api.schema import APIObject, wire
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

PROXY_SCHEMES: Final = ("http", "https", "socks5")
EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
NEVER, IF_AVAILABLE, ALWAYS = "Never", "IfAvailable", "Always"

_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")


@frozen(repr=False)
class Extension(APIObject):
    """What another program keeps in the file."""

    name: str = ""
    extension: dict[str, Any] = field(factory=dict)


@frozen(repr=False)
class Cluster(APIObject):
    """Where an API server is, and how it is known to be the right one."""

    server: str = ""
    tls_server_name: str = field(default="", metadata=wire("tls-server-name"))
    insecure_skip_tls_verify: bool = field(default=False, metadata=wire("insecure-skip-tls-verify"))
    certificate_authority: str = field(default="", metadata=wire("certificate-authority"))
    certificate_authority_data: bytes = field(default=b"", metadata=wire("certificate-authority-data"))
    proxy_url: str = field(default="", metadata=wire("proxy-url"))
    disable_compression: bool = field(default=False, metadata=wire("disable-compression"))
    extensions: tuple[Extension, ...] = ()


@frozen(repr=False)
class Variable(APIObject):
    """An environment variable of a plugin."""

    name: str = ""
    value: str = field(default="", repr=False)


@frozen(repr=False)
class Exec(APIObject):
    """A program that knows credentials."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


@frozen(repr=False)
class AuthProvider(APIObject):
    """A way to get credentials that Kubernetes no longer has."""

    name: str = ""


@frozen(repr=False)
class User(APIObject):
    """A user's credentials."""

    client_certificate: str = field(default="", metadata=wire("client-certificate"))
    client_certificate_data: bytes = field(default=b"", metadata=wire("client-certificate-data"))
    client_key: str = field(default="", metadata=wire("client-key"))
    client_key_data: bytes = field(default=b"", repr=False, metadata=wire("client-key-data"))
    token: str = field(default="", repr=False)
    token_file: str = field(default="", metadata=wire("tokenFile"))
    username: str = ""
    password: str = field(default="", repr=False)
    impersonate: str = field(default="", metadata=wire("as"))
    impersonate_uid: str = field(default="", metadata=wire("as-uid"))
    impersonate_groups: tuple[str, ...] = field(default=(), metadata=wire("as-groups"))
    auth_provider: AuthProvider | None = field(default=None, metadata=wire("auth-provider"))
    exec: Exec | None = None


@frozen(repr=False)
class Context(APIObject):
    """Which user to be to which cluster."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


@frozen(repr=False)
class NamedCluster(APIObject):
    name: str = ""
    cluster: Cluster = field(factory=Cluster)


@frozen(repr=False)
class NamedUser(APIObject):
    name: str = ""
    user: User = field(factory=User)


@frozen(repr=False)
class NamedContext(APIObject):
    name: str = ""
    context: Context = field(factory=Context)


@frozen(repr=False)
class Kubeconfig(APIObject):
    """The whole file."""

    api_version: str = ""
    kind: str = ""
    clusters: tuple[NamedCluster, ...] = ()
    users: tuple[NamedUser, ...] = ()
    contexts: tuple[NamedContext, ...] = ()
    current_context: str = field(default="", metadata=wire("current-context"))


@frozen
class Chosen:
    """The parts of a kubeconfig that are used, with their names and their places in the file."""

    cluster: Cluster
    cluster_name: str
    cluster_path: str
    user: User
    user_name: str
    user_path: str


def choose(config: Kubeconfig) -> Chosen | list[Problem]:
    """What the current context names, or why it cannot be used."""
    if config.kind not in ("", "Config") or config.api_version not in ("", "v1"):
        return [Problem("kind", f'no kind "{config.kind}" is registered for version "{config.api_version}"')]
    if not (config.clusters or config.users or config.contexts):
        return [Problem("", "no configuration has been provided")]
    wanted = config.current_context
    if not wanted:
        names = ", ".join(named.name for named in config.contexts) or "none are there"
        return [Problem("current-context", f"no context chosen: expected one of the contexts ({names})")]
    # The last of two entries with one name counts, as in a map.
    contexts = {named.name: (index, named.context) for index, named in enumerate(config.contexts)}
    clusters = {named.name: (index, named.cluster) for index, named in enumerate(config.clusters)}
    users = {named.name: (index, named.user) for index, named in enumerate(config.users)}
    if wanted not in contexts:
        return [Problem("current-context", f"context was not found for specified context: {wanted}")]
    place, context = contexts[wanted]
    problems = list(_context_problems(context, wanted, f"contexts[{place}].context", clusters, users))
    cluster_place, cluster = clusters.get(context.cluster, (0, Cluster()))
    user_place, user = users.get(context.user, (0, User()))
    chosen = Chosen(
        cluster,
        context.cluster,
        f"clusters[{cluster_place}].cluster",
        user,
        context.user,
        f"users[{user_place}].user",
    )
    if context.cluster in clusters:
        problems += [Problem(_join(chosen.cluster_path, part), text) for part, text in _cluster_problems(chosen)]
    if context.user in users:
        problems += [Problem(_join(chosen.user_path, part), text) for part, text in _user_problems(chosen)]
    return problems or chosen


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if part else path


def _context_problems(
    context: Context, name: str, path: str, clusters: dict[str, Any], users: dict[str, Any]
) -> Iterator[Problem]:
    if not context.user:
        yield Problem(path, f'user was not specified for context "{name}"')
    elif context.user not in users:
        yield Problem(f"{path}.user", f'user "{context.user}" was not found for context "{name}"')
    if not context.cluster:
        yield Problem(path, f'cluster was not specified for context "{name}"')
    elif context.cluster not in clusters:
        yield Problem(f"{path}.cluster", f'cluster "{context.cluster}" was not found for context "{name}"')
    if context.namespace and dns_label(context.namespace):
        text = (
            f'namespace "{context.namespace}" for context "{name}" does not conform to the kubernetes DNS_LABEL rules'
        )
        yield Problem(f"{path}.namespace", text)


def _cluster_problems(chosen: Chosen) -> Iterator[tuple[str, str]]:
    cluster, name = chosen.cluster, chosen.cluster_name
    if cluster == Cluster():
        yield "", "cluster has no server defined"
        return
    if not cluster.server:
        yield "server", f'no server found for cluster "{name}"'
    elif split_server(cluster.server) is None:
        yield "server", f'host must be a URL or a host:port pair: "{without_password(cluster.server)}"'
    if cluster.proxy_url and (problem := proxy_problem(cluster.proxy_url)):
        shown = without_password(cluster.proxy_url)
        yield "proxy-url", f'invalid \'proxy-url\' "{shown}" for cluster "{name}": {problem}'
    if cluster.certificate_authority and cluster.certificate_authority_data:
        text = (
            f"certificate-authority-data and certificate-authority are both specified for {name}. "
            "certificate-authority-data will override."
        )
        yield "certificate-authority", text
    has_authority = cluster.certificate_authority or cluster.certificate_authority_data
    if cluster.insecure_skip_tls_verify and has_authority:
        text = "specifying a root certificates file with the insecure flag is not allowed"
        yield "insecure-skip-tls-verify", text


def _user_problems(chosen: Chosen) -> Iterator[tuple[str, str]]:
    user, name = chosen.user, chosen.user_name
    if user.client_certificate or user.client_certificate_data:
        if user.client_certificate and user.client_certificate_data:
            text = f"client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
            yield "client-certificate", text
        if user.client_key and user.client_key_data:
            text = f"client-key-data and client-key are both specified for {name}; client-key-data will override"
            yield "client-key", text
        if not (user.client_key or user.client_key_data):
            text = (
                f"client-key-data or client-key must be specified for {name} "
                "to use the clientCert authentication method."
            )
            yield "client-key", text
    if user.exec is not None:
        if user.auth_provider is not None:
            yield "exec", f"authProvider cannot be provided in combination with an exec plugin for {name}"
        for part, text in _exec_problems(user.exec, name):
            yield _join("exec", part), text
    elif user.auth_provider is not None:
        yield "auth-provider", f'no Auth Provider found for name "{user.auth_provider.name}"'
    methods = []
    if user.token:
        methods.append("token")
    if user.username or user.password:
        methods.append("basicAuth")
    if len(methods) > 1:
        found = " ".join(methods)
        yield "", f"more than one authentication method found for {name}; found [{found}], only one is allowed"
    elif user.token_file and methods == ["basicAuth"]:
        yield "", "username/password or bearer token may be set, but not both"
    if _CONTROL.search(user.token) or not user.token.isascii():
        yield "token", "expected a token of ASCII characters, without spaces and line breaks"
    if user.impersonate or user.impersonate_uid or user.impersonate_groups:
        yield "as", "a node acts as itself: remove as, as-uid and as-groups"


def _exec_problems(plugin: Exec, name: str) -> Iterator[tuple[str, str]]:
    purpose = f"must be specified for {name} to use exec authentication plugin"
    if not plugin.command:
        yield "command", f"command {purpose}"
    if not plugin.api_version:
        yield "apiVersion", f"apiVersion {purpose}"
    elif plugin.api_version not in EXEC_VERSIONS:
        yield "apiVersion", f'exec plugin: invalid apiVersion "{plugin.api_version}"'
    for index, variable in enumerate(plugin.env):
        if not variable.name:
            yield f"env[{index}].name", f"env variable name {purpose}"
    if not plugin.interactive_mode:
        if plugin.api_version == EXEC_VERSIONS[0]:  # v1beta1 has a default
            yield "interactiveMode", f"interactiveMode {purpose}"
    elif plugin.interactive_mode not in (NEVER, IF_AVAILABLE, ALWAYS):
        yield "interactiveMode", f'invalid interactiveMode for {name}: "{plugin.interactive_mode}"'


def split_server(server: str) -> SplitResult | None:
    """The URL of a server, or None when it is none. Without a scheme it is that of an unencrypted one."""
    try:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number, or brackets do not match
        return None
    if not valid or _CONTROL.search(server):
        return None
    return parts


def proxy_problem(url: str) -> str | None:
    """Why a proxy cannot be used."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"could not parse: {error}"
    if parts.scheme not in PROXY_SCHEMES:
        return f'unsupported scheme "{parts.scheme}", must be http, https, or socks5'
    if not parts.hostname or port == 0 or _CONTROL.search(url):
        return "expected a host"
    return None


def without_password(url: str) -> str:
    """A URL for logs and errors."""
    return re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:xxxxx@", url)
