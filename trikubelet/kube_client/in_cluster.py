"""The access that every pod has to its own cluster, for an agent that runs as a pod: its service account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.kube_client.kubeconfig import ClusterAccess, CredentialSettings, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@frozen
class NotInClusterError(Exception):
    """This process was not started as a container of a pod with a service account."""

    message: str

    def __str__(self) -> str:
        return self.message


def in_cluster_access(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The access of the pod that this process is in. Blocks on the disk. Raises NotInClusterError."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise NotInClusterError(
            "unable to load in-cluster configuration, "
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
        )
    token, authority = folder / "token", folder / "ca.crt"
    try:
        token.open("rb").close()
    except OSError as error:
        raise NotInClusterError(f"unable to load in-cluster configuration: {token}: {error.strerror}") from error
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        # Without the file the authorities that the system trusts have to do.
        tls=TlsSettings(authority if authority.exists() else None),
        credentials=CredentialSettings(token_file=token),
    )
