"""The policy: which images are checked before a pod may use them, and which credentials suffice. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.config.image_rules import ANYTHING_BELOW
from trikubelet.formats.image_names import InvalidImageNameError, without_tag_and_digest
from trikubelet.runtime.images.pull_records.model import PullSecret, PullServiceAccount

if TYPE_CHECKING:
    from trikubelet.runtime.images.pull_records.model import ImageCredentials

NEVER_VERIFY: Final = "NeverVerify"
NEVER_VERIFY_PRELOADED: Final = "NeverVerifyPreloadedImages"
NEVER_VERIFY_ALLOWLISTED: Final = "NeverVerifyAllowlistedImages"
ALWAYS_VERIFY: Final = "AlwaysVerify"


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
            name.startswith(entry.removesuffix("*")) if entry.endswith(ANYTHING_BELOW) else name == entry
            for entry in self.allowlist
        )


@attrs.frozen
class PodCredentials:
    """A pod's credentials for an image, without the node's own."""

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
