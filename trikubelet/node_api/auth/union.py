"""Several authenticators as one, and what is true of all of them.

Facts from `k8s.io/apiserver`: `authenticatorfactory/delegating.go`, `request/union`, `group` and `request/anonymous`.
An authenticator answers with a user, with None when the request shows nothing of its kind, or with an error. All are
asked until one knows the user: a good token helps although the certificate is bad. A request is anonymous only if it
showed nothing at all: a bad credential is never anonymous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.formats.values import frozen
from trikubelet.http.messages import User

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.http.messages import Request

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = User("system:anonymous", groups=(UNAUTHENTICATED,))


@frozen
class AuthenticationError(Exception):
    """The request shows a credential that cannot be accepted. For the agent's log; clients do not get it."""

    message: str

    def __str__(self) -> str:
        return self.message


class Authenticator(Protocol):
    """One way to authenticate a request."""

    async def authenticate(self, request: Request) -> User | None:
        """The user, or None when the request shows nothing that this one understands.

        Raises AuthenticationError for a credential that is not accepted, or cannot be checked now. Takes bounded time.
        """
        ...


class Union:
    """Asks all until one knows the user, and adds the group of all users."""

    def __init__(self, authenticators: Sequence[Authenticator], *, anonymous: bool = False) -> None:
        """`anonymous`: a request without any credential is `system:anonymous`'s."""
        self._authenticators = tuple(authenticators)
        self._anonymous = anonymous

    async def authenticate(self, request: Request) -> User | None:
        """Raises AuthenticationError with all reasons when at least one refused and none knew the user."""
        problems = []
        for authenticator in self._authenticators:
            try:
                user = await authenticator.authenticate(request)
            except AuthenticationError as error:
                problems.append(error.message)
                continue
            if user is not None:
                return with_group_of_all(user)
        if problems:
            raise AuthenticationError("; ".join(dict.fromkeys(problems)))
        return ANONYMOUS if self._anonymous else None


def with_group_of_all(user: User) -> User:
    """The user in `system:authenticated`, unless it is anonymous or the groups say so already."""
    if user.name == ANONYMOUS.name or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return attrs.evolve(user, groups=(*user.groups, AUTHENTICATED))
