"""How a node gets its identity: from a kubeconfig that has one, or with credentials for newcomers.

    kubeconfig with a valid certificate                 it is used, and renewed from then on if that is asked for
    none, or an expired one, and a bootstrap kubeconfig  a certificate is asked for with the bootstrap's credentials

In the second case the agent does not wait: `NodeIdentity.access` names the files that the certificate will be in, so
that a client can be made at once. It gets no connection until the certificate is there, and one right after it.

The files are the kubelet's, and so is what a restart finds in them: the key that a request was made with, so that the
same request is found again; the kubeconfig, which names the store's newest certificate. With rotation it is written
before there is a certificate, without rotation afterwards, as the kubelet does.

`prepare_identity` blocks on the disk: before the event loop, or in a thread.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.certificates.reading import read_certificates
from trikubelet.kube_client.certificates.requests import (
    CLIENT_AUTH,
    CLIENT_SIGNER,
    SigningError,
    request_certificate,
    wait_for_certificate,
    wanted_for_node,
)
from trikubelet.kube_client.certificates.rotation import RETRIES, CertificateManager
from trikubelet.kube_client.certificates.store import CertificateError, CertificateStore, load_files
from trikubelet.kube_client.errors import ApiError
from trikubelet.kube_client.kubeconfig import (
    ClusterAccess,
    CredentialSettings,
    KubeconfigError,
    missing_files,
    read_kubeconfig,
    write_bootstrapped,
)
from trikubelet.kube_client.tls import KeyPair, TlsError, client_context
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.certificates.signing import PrivateKey
    from trikubelet.kube_client.certificates.store import CertifiedKey
    from trikubelet.kube_client.types import ApiClient

    OpenClient = Callable[[ClusterAccess], AbstractAsyncContextManager[ApiClient]]

log = get_logger("certificates")

STORE_PREFIX: Final = "kubelet-client"
KEY_FILE: Final = "kubelet-client.key.tmp"
"""The key of a request that has not been answered."""
SERVER_UP_WITHIN: Final = 60.0
"""Seconds that an API server that is starting is waited for, before it is asked anyway."""
ASK_HEALTH: Final = 2.0
SIGNED_WITHIN: Final = 3600.0


@frozen
class BootstrapOptions:
    """What flags and configuration say of the node's identity."""

    kubeconfig: Path
    certificates: Path
    """The folder for them (`--cert-dir`)."""
    node_name: str
    bootstrap_kubeconfig: Path | None = None
    rotate: bool = False
    """Renew the certificate before its end (`rotateCertificates`)."""


class NodeIdentity:
    """Where the API server is, and the node's identity there: now, or as soon as `run` got a certificate."""

    def __init__(
        self, access: ClusterAccess, *, manager: CertificateManager | None, bootstrap: _Bootstrap | None
    ) -> None:
        self.access = access
        """What to open the agent's client with."""
        self.manager = manager
        """Renews the certificate; None without rotation."""
        self._bootstrap = bootstrap
        self._listeners: list[Callable[[], None]] = []
        if manager is not None:
            manager.on_change(self._changed)

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when there is a new certificate: files are to be read again.

        Synchronously, so that no request is made with the old one afterwards.
        """
        self._listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Get a certificate if there is none, and renew it if that is asked for. Returns when nothing is left to do."""
        task_status.started()
        if self.manager is not None:
            await self.manager.run()
        elif self._bootstrap is not None:
            await self._bootstrap.until_done()
            self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def prepare_identity(
    options: BootstrapOptions, open_client: OpenClient, *, clock: WallClock, rng: random.Random | None = None
) -> NodeIdentity:
    """Find the node's identity, or the credentials to request one (kubelet: `buildKubeletClientConfig`).

    Raises KubeconfigError when a kubeconfig that is needed, or a file that it names, cannot be used, CertificateError
    when the folder cannot, and OSError when it cannot be written.
    """
    rng = rng or random.Random()
    store = CertificateStore(options.certificates, STORE_PREFIX, clock=clock)
    newcomer = _newcomer(options, clock.now())
    own = _usable(options.kubeconfig) if newcomer is None else _with_store(newcomer, store)
    if options.rotate:
        if newcomer is not None:
            write_bootstrapped(options.kubeconfig, newcomer, store.current_path)
        manager = _rotating(options, store, own, open_client, clock, rng)
        return NodeIdentity(_with_store(own, store), manager=manager, bootstrap=None)
    if newcomer is None:
        return NodeIdentity(own, manager=None, bootstrap=None)
    bootstrap = _Bootstrap(options, newcomer, store, open_client, clock, rng)
    return NodeIdentity(own, manager=None, bootstrap=bootstrap)


def _newcomer(options: BootstrapOptions, now: datetime) -> ClusterAccess | None:
    """The credentials for newcomers, if they are needed."""
    if options.bootstrap_kubeconfig is None:
        return None
    problem = invalid_because(options.kubeconfig, now)
    if not problem:
        log.info("the kubeconfig is valid, no bootstrap is necessary", kubeconfig=str(options.kubeconfig))
        return None
    log.info("a client certificate is asked for with the bootstrap credentials", because=problem)
    return _usable(options.bootstrap_kubeconfig)


def _usable(kubeconfig: Path) -> ClusterAccess:
    """A kubeconfig whose files can be read (client-go: `clientcmd.ConfirmUsable`). Raises KubeconfigError."""
    access = read_kubeconfig(kubeconfig)
    problems = missing_files(access)
    if problems:
        what_to_do = "put it there, or correct the kubeconfig"
        raise KubeconfigError(kubeconfig, tuple(f"{problem}: {what_to_do}" for problem in problems))
    return access


def invalid_because(kubeconfig: Path, now: datetime) -> str:
    """Why a kubeconfig has no valid client certificate; empty when it has one (kubelet: `isClientConfigStillValid`).

    Raises OSError when it cannot be looked at, which bootstrapping would not cure.
    """
    try:
        kubeconfig.stat()
    except FileNotFoundError:
        return f"{kubeconfig} does not exist"
    try:
        access = read_kubeconfig(kubeconfig)
        authority = None if access.tls.authority is None else _content(access.tls.authority)
        pair = _pair(access.credentials)
        if pair is None:
            return f"{kubeconfig} has no client certificate"
        client_context(authority, pair, insecure=access.tls.insecure)
        chain = read_certificates(pair.certificate)
        if not chain:
            raise ValueError("its client certificate has no PEM block CERTIFICATE")
    except (KubeconfigError, TlsError, OSError, ValueError) as error:
        return f"unable to use the existing {kubeconfig}: {error}"
    for certificate in chain:
        if now > certificate.not_after:
            end = certificate.not_after
            return f"part of the existing bootstrap client certificate in {kubeconfig} is expired: {end}"
    return ""


def _content(part: bytes | Path) -> bytes:
    return part if isinstance(part, bytes) else part.read_bytes()


def _pair(credentials: CredentialSettings) -> KeyPair | None:
    if credentials.certificate is None or credentials.key is None:
        return None
    return KeyPair(_content(credentials.certificate), _content(credentials.key))


def _with_store(access: ClusterAccess, store: CertificateStore) -> ClusterAccess:
    """The same API server, met with the store's newest certificate and nothing else."""
    pem = store.current_path
    return attrs.evolve(access, credentials=CredentialSettings(certificate=pem, key=pem))


def _rotating(
    options: BootstrapOptions,
    store: CertificateStore,
    own: ClusterAccess,
    open_client: OpenClient,
    clock: WallClock,
    rng: random.Random,
) -> CertificateManager:
    def client(current: CertifiedKey | None) -> AbstractAsyncContextManager[ApiClient]:
        return open_client(_requesting(options, own) if current is None else _with_store(own, store))

    wanted = wanted_for_node(options.node_name)
    return CertificateManager(
        store,
        client=client,
        wanted=lambda: wanted,
        signer=CLIENT_SIGNER,
        purpose=CLIENT_AUTH,
        clock=clock,
        rng=rng,
        initial=_initial(own.credentials, store, clock.now()),
    )


def _requesting(options: BootstrapOptions, own: ClusterAccess) -> ClusterAccess:
    """With what to ask for a certificate when there is no valid one: read anew, as newcomers' credentials end too."""
    if options.bootstrap_kubeconfig is None:
        return own
    try:
        return read_kubeconfig(options.bootstrap_kubeconfig)
    except KubeconfigError as error:
        log.warning("the bootstrap kubeconfig cannot be used", error=str(error))
        return own


def _initial(credentials: CredentialSettings, store: CertificateStore, now: datetime) -> KeyPair | None:
    """The kubeconfig's own pair, to begin with when the store has none.

    A pair that stands in the kubeconfig is renewed at once: kubeadm's first one may do more than a node. One that the
    kubeconfig only names is a node's own, and moves into the store as it is.
    """
    certificate, key = credentials.certificate, credentials.key
    if isinstance(certificate, bytes) and isinstance(key, bytes):
        return KeyPair(certificate, key)
    if isinstance(certificate, Path) and isinstance(key, Path) and not store.current_path.exists():
        try:
            named = load_files(certificate, key)
            if not named.expired(now):
                store.update(named.pair.certificate, named.pair.key)
        except (CertificateError, OSError) as error:
            log.info("the kubeconfig's client certificate cannot be used", error=str(error))
    return None


async def bootstrap(
    options: BootstrapOptions,
    newcomer: ClusterAccess,
    open_client: OpenClient,
    *,
    clock: WallClock,
    rng: random.Random | None = None,
) -> None:
    """Ask for a certificate with a newcomer's credentials, keep it, and write the kubeconfig (`LoadClientCert`).

    Waits up to an hour. Raises ApiError, SigningError, CertificateError, OSError. The key survives that, and a
    cancellation: the next attempt finds its request.
    """
    store = CertificateStore(options.certificates, STORE_PREFIX, clock=clock)
    await _Bootstrap(options, newcomer, store, open_client, clock, rng or random.Random()).once()


@define(eq=False)
class _Bootstrap:
    options: BootstrapOptions
    newcomer: ClusterAccess
    store: CertificateStore
    open_client: OpenClient
    clock: WallClock
    rng: random.Random

    async def until_done(self) -> None:
        wait = RETRIES.first
        while True:
            try:
                await self.once()
            except (ApiError, SigningError, CertificateError, OSError) as error:
                log.error("the node has no client certificate, trying again", error=str(error))
                await trio.sleep(wait * (1 + 0.1 * self.rng.random()))
                wait = RETRIES.after(wait)
            else:
                return

    async def once(self) -> None:
        from trikubelet.kube_client.certificates.signing import digested_name, signing_request, usages

        key, pem = await trio.to_thread.run_sync(self._key)
        wanted = wanted_for_node(self.options.node_name)
        used_for = usages(key, CLIENT_AUTH)
        async with self.open_client(self.newcomer) as client:
            await self._until_up(client)
            submitted = await request_certificate(
                client,
                CLIENT_SIGNER,
                signing_request(key, wanted),
                used_for,
                key=key,
                now=self.clock.now(),
                name=digested_name(key, wanted, used_for),
            )
            log.info("waiting for the client certificate to be issued", csr=submitted.name)
            certificate = b""
            with trio.move_on_after(SIGNED_WITHIN):
                certificate = await wait_for_certificate(client, submitted)
        if not certificate:
            raise SigningError(f'csr "{submitted.name}" was not signed within an hour')
        await trio.to_thread.run_sync(self._keep, certificate, pem)

    def _key(self) -> tuple[PrivateKey, bytes]:
        """The key of the store's pair, or of the last attempt, or a new one, which is kept for the next attempt."""
        from trikubelet.kube_client.certificates.signing import key_pem, load_key, new_key

        try:
            stored = self.store.current().pair.key
            return load_key(stored), stored
        except CertificateError:
            pass  # none, or of no use
        path = self.options.certificates / KEY_FILE
        if path.exists():
            pem = path.read_bytes()
            return load_key(pem), pem
        self.options.certificates.mkdir(parents=True, exist_ok=True, mode=0o755)
        key = new_key()
        pem = key_pem(key)
        write_atomically(path, pem)
        return key, pem

    def _keep(self, certificate: bytes, key: bytes) -> None:
        self.store.update(certificate, key)
        (self.options.certificates / KEY_FILE).unlink(missing_ok=True)
        write_bootstrapped(self.options.kubeconfig, self.newcomer, self.store.current_path)

    async def _until_up(self, client: ApiClient) -> None:
        """Wait for an API server that is just starting; after a minute it is asked anyway, which tells the problem."""
        patient = client.view(limit=None, timeout=1.0)
        with trio.move_on_after(SERVER_UP_WITHIN):
            while True:
                try:
                    await patient.get_text("/healthz")
                except ApiError as error:
                    log.info("failed to connect to the API server", error=str(error))
                else:
                    return
                await trio.sleep(ASK_HEALTH * (1 + 0.2 * self.rng.random()))
