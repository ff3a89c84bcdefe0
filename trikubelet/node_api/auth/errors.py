"""What cannot work of a configuration of authentication and authorization. An agent without a port imports no more of
this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.config.kubelet_configuration import KubeletConfiguration


@frozen
class AuthConfigurationError(Exception):
    """The configuration of authentication or authorization cannot work."""

    field: str
    """The configuration's, `authorization.mode`."""
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.advice}"


@frozen
class NoApiServerError(AuthConfigurationError):
    """The API server is to be asked, and there is none."""


def check_without_api_server(configuration: KubeletConfiguration) -> None:
    """Raises NoApiServerError where only an API server can tell whose a token is, and who may what."""
    if configuration.authentication.webhook.enabled:
        raise NoApiServerError(
            "authentication.webhook.enabled",
            "no client provided, cannot use webhook authentication",
            "join a cluster with a kubeconfig, or set it to false",
        )
    if configuration.authorization.mode == "Webhook":
        raise NoApiServerError(
            "authorization.mode",
            "no client provided, cannot use webhook authorization",
            "join a cluster with a kubeconfig, or set it to AlwaysAllow",
        )
