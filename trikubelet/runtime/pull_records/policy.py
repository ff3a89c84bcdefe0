"""Which images are checked before a pod may use them, and what lets a pod pass. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.runtime.image_names import InvalidImageNameError, without_tag_and_digest
from trikubelet.runtime.pull_records.model import PullSecret, PullServiceAccount

if TYPE_CHECKING:
    from trikubelet.runtime.pull_records.model import ImageCredentials

NEVER_VERIFY: Final = "NeverVerify"
NEVER_VERIFY_PRELOADED: Final = "NeverVerifyPreloadedImages"
NEVER_VERIFY_ALLOWLISTED: Final = "NeverVerifyAllowlistedImages"
ALWAYS_VERIFY: Final = "AlwaysVerify"

_ANYTHING_BELOW: Final = "/*"


def allowlist_problem(pattern: str) -> str | None:
    """Why an entry of `preloadedImagesVerificationAllowlist` is none, or None.

    An entry is an image name without tag and digest, or a registry or part of one followed by `/*`.
    """
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    name = pattern.removesuffix("*") if pattern.endswith(_ANYTHING_BELOW) else pattern
    if not name:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in name:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
    if name != pattern:
        return "at least registry hostname is required" if name == "/" else None
    try:
        bare = without_tag_and_digest(name)
    except InvalidImageNameError as error:
        return f"failed to parse as an image name: {error.problem}"
    return None if bare == name else f"neither tag nor digest is accepted in an image reference: {pattern}"


@attrs.frozen
class VerificationPolicy:
    """The settings imagePullCredentialsVerificationPolicy and preloadedImagesVerificationAllowlist."""

    name: str = NEVER_VERIFY_PRELOADED
    allowlist: tuple[str, ...] = ()

    def checks(self, image: str, *, pulled_here: bool) -> bool:
        """Whether a pod must show that it may use an image that is present.

        `image` is the container's name for it. `pulled_here`: this node's agent pulled it at some time; whatever is
        checked otherwise is checked then, too.
        """
        if self.name == NEVER_VERIFY:
            return False
        if self.name == NEVER_VERIFY_PRELOADED:
            return pulled_here
        if self.name == NEVER_VERIFY_ALLOWLISTED:
            return not self._allows(image)
        return True

    def _allows(self, image: str) -> bool:
        try:
            name = without_tag_and_digest(image)
        except InvalidImageNameError:
            name = image
        return any(
            name.startswith(entry.removesuffix("*")) if entry.endswith(_ANYTHING_BELOW) else name == entry
            for entry in self.allowlist
        )


@attrs.frozen
class PodCredentials:
    """What a pod has to pull an image with, the node's own credentials left out."""

    secrets: tuple[PullSecret, ...] = ()
    service_account: PullServiceAccount | None = None


def key_that_fits(recorded: ImageCredentials, pod: PodCredentials) -> PullSecret | PullServiceAccount | None:
    """The pod's credential that opens the image.

    A secret fits by its content, wherever it is, or by its place, whatever its content: a password that was changed
    is one that the same owner still has.
    """
    for secret in pod.secrets:
        for known in recorded.kubernetes_secrets:
            same_content = secret.credential_hash and secret.credential_hash == known.credential_hash
            if same_content or secret.place == known.place:
                return secret
    account = pod.service_account
    if account is not None and any(account.place == known.place for known in recorded.kubernetes_service_accounts):
        return account
    return None
