"""Adding the credentials of one more pull to an image's record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.runtime.images.pull_records.model import ImageCredentials, PulledRecord

if TYPE_CHECKING:
    from datetime import datetime


def with_credentials(
    record: PulledRecord | None, image_ref: str, name: str, credentials: ImageCredentials | None, now: datetime
) -> PulledRecord:
    """The record after a pull; the same object when there is nothing new in it (kubelet: `pulledRecordMergeNewCreds`).

    `name` is the container's name for the image, without tag and digest. No `credentials`: nobody knows how the image
    came, so that there is a record, and it opens the image to nobody.
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
    """What is open to all stays so. Of one secret the newest content counts."""
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
