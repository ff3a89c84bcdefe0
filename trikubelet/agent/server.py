"""What an agent serves: its ports, its unix socket, its serving certificate, and the authorization of requests.

    unix socket   ROOT/trikubelet.sock: the command line's; a client that may open it may do everything
    node          10250, TLS: the API server, metrics collectors; authentication and authorization before every route
    read-only     off by default: the little that needs no authentication
    health        127.0.0.1:10248: whether the process answers
    page          --ui ADDRESS, off by default: the pods live, in a browser
    pod resources ROOT/pod-resources/kubelet.sock: what monitors of devices ask

All have the same handlers (`node_api.node_api`); what they ask of the agent, they ask through `NodeView`. What is
needed only for a port, its first client or a scrape (the metrics library) is imported when first needed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import trio

from trikubelet.http.counted import counted
from trikubelet.http.messages import AnyResponse, HTTPError, Request
from trikubelet.http.routing import Route, Router
from trikubelet.http.server import HttpServer
from trikubelet.metrics.health_checks import HealthChecks
from trikubelet.metrics.http_requests import READ_ONLY, READ_WRITE, RequestCounts
from trikubelet.node.podresources.providers import NO_PROVIDER, Providers
from trikubelet.node.podresources.server import FOLDER, SOCKET, PodResourcesServer
from trikubelet.node_api.auth.errors import AuthConfigurationError, NoApiServerError, check_without_api_server
from trikubelet.node_api.handlers.exposition import Exposition, ScrapedPage, metrics_page, summary_page, text_page
from trikubelet.node_api.handlers.health import NODE_CHECKS, liveness
from trikubelet.node_api.handlers.streams import StreamHandlers
from trikubelet.node_api.listeners import NodeListeners, Port, node_ports
from trikubelet.node_api.local_api import local_api
from trikubelet.node_api.node_api import Parts, Switches, node_api, read_only_api
from trikubelet.node_api.tls_settings import TlsSettingsError
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.node_view import NodeView
    from trikubelet.api import Pod
    from trikubelet.http.messages import Handler
    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.kube_client.certificates.serving import ServingCertificate
    from trikubelet.metrics.exposition import AgentMetrics, Page
    from trikubelet.node_api.auth.build import NodeAuth
    from trikubelet.node_api.auth.client_ca import ClientCA

log = get_logger("server")

SHUTDOWN_GRACE: Final = 2.0
"""Seconds for answers in progress when the agent ends; followed logs are cut off then."""


class ServerError(Exception):
    """The node's API cannot be served as the configuration says. The text tells what to change."""


class AgentServer:
    """Everything that an agent serves. `run` it; it may be started before the agent, and says then what it knows."""

    def __init__(
        self,
        agent: Agent,
        view: NodeView,
        auth: NodeAuth | None,
        certificate: ServingCertificate | None,
        client_certificate: CertificateManager | None,
    ) -> None:
        """Not for callers: see `make`."""
        self._agent = agent
        self._view = view
        self._auth = auth
        self._certificate = certificate
        self._client_certificate = client_certificate
        self._configuration = agent.options.configuration
        self._requests = RequestCounts()
        self._health = HealthChecks(self._health_checks)
        self._metrics: AgentMetrics | None = None
        self._parts = Parts(
            streams=StreamHandlers(
                view,
                count=self._requests.websocket,
                translates=self._configuration.enabled("ExtendWebSocketsToKubelet"),
            ),
            exposition=self._exposition(),
        )
        clock = agent.clock
        checkpoint = self._configuration.enabled("ContainerCheckpoint")
        everything = node_api(view, self._parts, Switches(checkpoint=checkpoint), clock)
        local = local_api(view, clock, everything)
        self._local = HttpServer(local)
        self._listeners = NodeListeners(self._with_ui(self._ports(), local))
        managers = agent.managers or NO_PROVIDER
        providers = Providers(
            devices=agent.devices.manager or NO_PROVIDER,
            cpus=managers,
            memory=managers,
            claims=agent.claims.manager or NO_PROVIDER,
        )
        self._pod_resources = PodResourcesServer(agent.pods, listed_pods(agent), providers)

    @classmethod
    async def make(cls, agent: Agent, view: NodeView, *, client_certificate: CertificateManager | None = None) -> Self:
        """`client_certificate` renews what the node shows to the API server; only its metrics are of interest here.

        Raises ServerError for a configuration with which nothing can be served.
        """
        auth = _make_auth(agent)
        certificate = None if auth is None else await _make_certificate(agent)
        return cls(agent, view, auth, certificate, client_certificate)

    @property
    def _requested_certificate(self) -> CertificateManager | None:
        """The serving certificate, where the API server signs it."""
        if self._certificate is None:
            return None
        from trikubelet.kube_client.certificates.rotation import CertificateManager

        return self._certificate if isinstance(self._certificate, CertificateManager) else None

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Address and port number of what is listened on, by name: `node`, `read-only`, `health`, `ui`."""
        return self._listeners.addresses

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when everything is listened on that can be.

        Raises PortError and SocketInUseError before that.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(supervise, self._local.serve_unix, self._agent.options.socket)
            await nursery.start(supervise, self._pod_resources.run, self._agent.options.root_dir / FOLDER / SOCKET)
            if self._auth is not None:
                await nursery.start(self._auth.run)
            if self._certificate is not None:
                await nursery.start(supervise, self._certificate.run)
            if self._requested_certificate is not None:
                nursery.start_soon(supervise, self._follow_addresses, self._requested_certificate)
            await nursery.start(self._listeners.run)
            task_status.started()

    async def _follow_addresses(self, certificate: CertificateManager) -> None:
        with self._agent.observer.changed.subscribe() as changes:
            async for _ in changes:
                certificate.check_soon()

    async def shutdown(self) -> None:
        """Accept no more connections, and give the open ones SHUTDOWN_GRACE seconds."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._local.shutdown, SHUTDOWN_GRACE)
            nursery.start_soon(self._listeners.shutdown, SHUTDOWN_GRACE)

    def _ports(self) -> Sequence[Port]:
        agent, view, auth = self._agent, self._view, self._auth
        routes = node_api(view, self._parts, Switches.of(self._configuration), agent.clock)
        read = read_only_api(view, self._parts, agent.clock)
        node_handler: Handler = routes
        read_handler: Handler = read
        if agent.tracing is not None:
            node_handler = agent.tracing.routes(routes)
            read_handler = agent.tracing.routes(read, public=True)
        guarded: Handler = _refuse if auth is None else auth.guard(node_handler)
        try:
            ports = node_ports(
                self._configuration,
                node=self._counted(guarded, routes, READ_WRITE),
                read_only=self._counted(read_handler, read, READ_ONLY),
                health=liveness(),
                certificate=self._certificate,
                client_authorities=self._client_authorities(),
            )
        except TlsSettingsError as error:
            raise ServerError(str(error)) from error
        return ports

    def _with_ui(self, ports: Sequence[Port], local: Router) -> Sequence[Port]:
        """The ports, and that of the live page if it is asked for; `local` gives links to it."""
        options = self._agent.options
        address = options.ui_address
        if address is None:
            return ports
        from trikubelet.agent.ui import UiError, guarded_port, is_loopback, kept_sessions, link_handler, loopback_port

        try:
            if is_loopback(address):
                sessions = kept_sessions(options.root_dir)
                link = link_handler(sessions, lambda: self.addresses)
                local.extend([Route("POST", "/ui/link", link)])
                return [*ports, loopback_port(address, local, sessions)]
            secure = next((port.secure for port in ports if port.name == "node"), None)
            names = (options.node_name, options.node.hostname, "localhost")
            return [*ports, guarded_port(address, local, self._auth, secure, names)]
        except UiError as error:
            raise ServerError(str(error)) from error

    def _counted(self, handler: Handler, routes: Router, server: str) -> Handler:
        return counted(handler, partial(self._requests.request, server=server))

    def _client_authorities(self) -> Callable[[], bytes]:
        authorities = None if self._auth is None else self._auth.client_ca
        if authorities is None:
            return bytes
        return told_authorities(authorities, follow=self._configuration.enabled("ReloadKubeletClientCAFile"))

    def _exposition(self) -> Exposition:
        agent = self._agent
        return Exposition(
            metrics=metrics_page(partial(self._expose, "metrics")),
            probes=metrics_page(partial(self._expose, "probes")),
            slis=metrics_page(partial(self._expose, "slis"), reset=self._health.reset),
            resource=text_page(lambda: agent.stats.resource_text()),
            cadvisor=text_page(lambda: agent.stats.cadvisor_text()),
            summary=summary_page(lambda narrow: agent.stats.summary_json(narrow)),
            observe_health=self._health.observe,
        )

    async def _expose(self, page: Page, accept: str, accept_encoding: str) -> ScrapedPage:
        if self._metrics is None:
            from trikubelet.agent.metrics import agent_metrics

            self._metrics = agent_metrics(
                self._agent,
                self._health,
                requests=self._requests,
                client_certificate=self._client_certificate,
                server_certificate=self._requested_certificate,
                pod_resources=self._pod_resources.metrics,
                measured=self._agent.stats.log_samples,
            )
        return await self._metrics.expose(page, accept=accept, accept_encoding=accept_encoding)

    def _health_checks(self) -> Mapping[str, str | None]:
        health = self._view.health()
        return {name: health.get(name) for name in NODE_CHECKS}


def listed_pods(agent: Agent) -> Callable[[], Sequence[Pod]]:
    """Which pods the pod resources API lists."""
    active_only = agent.options.configuration.enabled("KubeletPodResourcesListUseActivePods")
    return agent.desired.active if active_only else agent.pods.pods


def _make_auth(agent: Agent) -> NodeAuth | None:
    """None when the node's port is not to be served, or cannot be: it lets no request in without authentication."""
    configuration = agent.options.configuration
    if not configuration.enable_server:
        return None
    client = None if agent.cluster is None else agent.cluster.client
    try:
        if client is None and not configuration.authentication.x509.client_ca_file:
            check_without_api_server(configuration)
        from trikubelet.node_api.auth.build import build_auth  # an agent without a port spares it

        return build_auth(configuration, client, agent.options.node_name, clock=agent.clock)
    except NoApiServerError as error:
        # The kubelet's defaults need a cluster. An agent without one is no error, and needs no port.
        log.info("the node's port is not served", why=str(error))
        return None
    except AuthConfigurationError as error:
        raise ServerError(str(error)) from error


async def _make_certificate(agent: Agent) -> ServingCertificate:
    from trikubelet.kube_client.certificates.self_signed import self_signed_files
    from trikubelet.kube_client.certificates.serving import WatchedPair, serving_manager
    from trikubelet.kube_client.certificates.store import CertificateError

    options, node = agent.options, agent.node
    configuration = options.configuration
    folder = options.root_dir / "pki" if options.cluster is None else options.cluster.cert_dir
    try:
        if configuration.server_tls_bootstrap and agent.cluster is not None:
            return serving_manager(
                agent.cluster.client,
                options.node_name,
                folder,
                lambda: node.cached().status.addresses,
                names_suffice=configuration.enabled("AllowDNSOnlyNodeCSR"),
                clock=agent.clock,
            )
        files = Path(configuration.tls_cert_file), Path(configuration.tls_private_key_file)
        if not configuration.tls_cert_file:
            files = await self_signed_files(folder, options.node_name, agent.clock.now())
        return WatchedPair(*files, watches=configuration.enabled("ReloadKubeletServerCertificateFile"))
    except (CertificateError, OSError) as error:
        raise ServerError(f"the serving certificate cannot be used: {error}") from error


def told_authorities(authorities: ClientCA, *, follow: bool) -> Callable[[], bytes]:
    """What clients are told: of whom to bring a certificate. Unless it follows the file, that of the start.

    Who is let in follows the file in any case, as in the kubelet.
    """
    first = authorities.bundle.pem
    return lambda: authorities.bundle.pem if follow else first


async def _refuse(_: Request) -> AnyResponse:
    raise HTTPError(401, "Unauthorized")
