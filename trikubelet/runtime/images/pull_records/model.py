"""The records of pulls, and the policy about them: which images are checked, and which credentials suffice. Pure.

The records are the kubelet's `ImagePullIntent` and `ImagePulledRecord` (kubelet.config.k8s.io/v1beta1), and one more.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import attrs
from attrs import field

from trikubelet.api import APIObject
from trikubelet.api.schema import REQUIRED
from trikubelet.config.image_rules import ANYTHING_BELOW
from trikubelet.formats.image_names import InvalidImageNameError, without_tag_and_digest
from trikubelet.formats.values import frozen

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
READ_VERSIONS: Final = frozenset({API_VERSION, "kubelet.config.k8s.io/v1alpha1"})
INTENT: Final = "ImagePullIntent"
RECORD: Final = "ImagePulledRecord"
BEFORE: Final = "ImageBeforePull"
NEVER_VERIFY: Final = "NeverVerify"
NEVER_VERIFY_PRELOADED: Final = "NeverVerifyPreloadedImages"
NEVER_VERIFY_ALLOWLISTED: Final = "NeverVerifyAllowlistedImages"
ALWAYS_VERIFY: Final = "AlwaysVerify"
MOST_SECRETS_NOTED: Final = 100
"""A record with so many secrets takes no further ones from pods that only use the image."""


@frozen(repr=False)
class PullIntent(APIObject):
    """A pull began, and its end is not recorded."""

    kind: str = INTENT
    api_version: str = API_VERSION
    image: str = field(default="", metadata=REQUIRED)
    """As the container names it."""


@frozen(repr=False)
class ImageBefore(APIObject):
    """What an image's name led to when pulls began whose end is not recorded. The kubelet keeps no such."""

    kind: str = BEFORE
    api_version: str = API_VERSION
    image: str = field(default="", metadata=REQUIRED)
    """As the container names it."""
    image_ref: str = ""
    """The runtime's id of it; empty: there was none."""
    last_pull: datetime | None = None
    """When the last pull was seen going on whose end is not known."""


@frozen(repr=False)
class PullSecret(APIObject):
    """A secret that an image was pulled with."""

    uid: str = field(default="", metadata=REQUIRED)
    namespace: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)
    credential_hash: str = field(default="", metadata=REQUIRED)
    """Hash of user name, password and so on: another secret with the same hash is as good. Empty: unknown."""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


@frozen(repr=False)
class PullServiceAccount(APIObject):
    """A service account; a plugin got the credentials with its token."""

    uid: str = field(default="", metadata=REQUIRED)
    namespace: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


@frozen(repr=False)
class ImageCredentials(APIObject):
    """The credentials that brought an image."""

    kubernetes_secrets: tuple[PullSecret, ...] = ()
    kubernetes_service_accounts: tuple[PullServiceAccount, ...] = ()
    node_pods_accessible: bool = False
    """No credentials were needed, or the node's own: every pod may use the image."""


@frozen(repr=False)
class PulledRecord(APIObject):
    """An image that was pulled here, and by whom."""

    kind: str = RECORD
    api_version: str = API_VERSION
    last_updated_time: datetime | None = field(default=None, metadata=REQUIRED)
    image_ref: str = field(default="", metadata=REQUIRED)
    """The runtime's name for the image."""
    credential_mapping: dict[str, ImageCredentials] = field(factory=dict)
    """By the containers' names for the image without tag and digest: one image may come from several registries."""


def with_credentials(
    record: PulledRecord | None, image_ref: str, name: str, credentials: ImageCredentials | None, now: datetime
) -> PulledRecord:
    """The record after a pull; the same object when there is nothing new in it (kubelet: `pulledRecordMergeNewCreds`).

    `name` is the container's name for the image, without tag and digest. No `credentials`: it is not known how the
    image came, so there is a record, and no pod may use the image by it.
    """
    if record is None:
        mapping = {} if credentials is None else {name: credentials}
        return PulledRecord(last_updated_time=now, image_ref=image_ref, credential_mapping=mapping)
    if credentials is None or credentials == ImageCredentials():
        return record
    known = record.credential_mapping.get(name)
    merged = credentials if known is None else _merged(known, credentials)
    if merged == known:
        return record
    return attrs.evolve(record, last_updated_time=now, credential_mapping={**record.credential_mapping, name: merged})


def _merged(known: ImageCredentials, new: ImageCredentials) -> ImageCredentials:
    """An image that is open to all pods stays so. Of one secret the newest content counts."""
    if known.node_pods_accessible or new.node_pods_accessible:
        return ImageCredentials(node_pods_accessible=True)
    secrets = {secret.place: secret for secret in (*known.kubernetes_secrets, *new.kubernetes_secrets)}
    accounts = {
        account.place: account for account in (*known.kubernetes_service_accounts, *new.kubernetes_service_accounts)
    }
    return ImageCredentials(
        kubernetes_secrets=tuple(secrets[place] for place in sorted(secrets)),
        kubernetes_service_accounts=tuple(accounts[place] for place in sorted(accounts)),
    )


@frozen
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


@frozen
class PodCredentials:
    """A pod's credentials for an image, without the node's own."""

    secrets: tuple[PullSecret, ...] = ()
    service_account: PullServiceAccount | None = None


def key_that_fits(recorded: ImageCredentials, pod: PodCredentials) -> PullSecret | PullServiceAccount | None:
    """The pod's credential that opens the image.

    A secret fits by its content, wherever it is, or by its place, whatever its content: a password that was changed
    is one that the same owner still has. By its place only where its new content can be noted.
    """
    can_be_noted = len(recorded.kubernetes_secrets) < MOST_SECRETS_NOTED
    for secret in pod.secrets:
        for known in recorded.kubernetes_secrets:
            same_content = secret.credential_hash and secret.credential_hash == known.credential_hash
            if same_content or (can_be_noted and secret.place == known.place):
                return secret
    account = pod.service_account
    if account is not None and any(account.place == known.place for known in recorded.kubernetes_service_accounts):
        return account
    return None
