"""Who asks: by client certificate, by token, or nobody."""

from __future__ import annotations

from typing import Final

import attrs

MASTERS: Final = "system:masters"
NODES: Final = "system:nodes"
NODE_PREFIX: Final = "system:node:"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
BOOTSTRAPPERS: Final = "system:bootstrappers"
KUBEADM_BOOTSTRAPPERS: Final = "system:bootstrappers:kubeadm:default-node-token"


@attrs.frozen
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups

    @property
    def node(self) -> str | None:
        """The name of the node whose agent this is; None for anybody else."""
        if NODES in self.groups and self.name.startswith(NODE_PREFIX):
            return self.name.removeprefix(NODE_PREFIX)
        return None


ADMIN: Final = User("kubernetes-admin", (MASTERS, AUTHENTICATED))
ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


def node_user(name: str) -> User:
    return User(f"{NODE_PREFIX}{name}", (NODES, AUTHENTICATED))


def service_account_user(namespace: str, name: str, uid: str = "") -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid)
