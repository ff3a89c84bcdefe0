"""One object, asked for now, with the errors that its callers expect (`kube_client.object_getter`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.object_getter import ObjectError

if TYPE_CHECKING:
    from trikubelet.kube_client.types import ApiClient, Resource, T


async def look_up(
    client: ApiClient, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = ""
) -> T:
    """The object. Raises ObjectError with the server's words. Cancellable."""
    try:
        return await client.get(resource, name, namespace, resource_version=resource_version)
    except ApiError as error:
        raise object_error(error) from error


def object_error(error: ApiError) -> ObjectError:
    """The failure of a call as the caller's error."""
    if isinstance(error, ApiStatusError):
        return ObjectError(error.message, "not found" if error.not_found else "unavailable")
    return ObjectError(str(error), "unavailable")
