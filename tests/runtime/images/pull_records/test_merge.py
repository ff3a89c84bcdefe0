"""Adding the credentials of one more pull to a record."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trikubelet.runtime.images.pull_records.model import (
    ImageCredentials,
    PulledRecord,
    PullSecret,
    PullServiceAccount,
    with_credentials,
)

BEFORE = datetime(2022, 2, 22, tzinfo=UTC)
NOW = datetime(2026, 1, 1, tzinfo=UTC)

ONE = PullSecret("uid1", "namespace1", "name1", "hash1")
TWO = PullSecret("uid2", "namespace2", "name2", "hash2")
ACCOUNT = PullServiceAccount("sa-uid1", "default", "sa1")
OTHER_ACCOUNT = PullServiceAccount("a-uid", "default", "sa1")
NODE = ImageCredentials(node_pods_accessible=True)


def of(*secrets: PullSecret, accounts: tuple[PullServiceAccount, ...] = ()) -> ImageCredentials:
    return ImageCredentials(secrets, accounts)


KNOWN = {"one": of(ONE), "two": of(ONE, TWO), "account": of(accounts=(ACCOUNT,)), "open": NODE}


def merged(name: str, new: ImageCredentials | None) -> PulledRecord:
    record = PulledRecord(last_updated_time=BEFORE, image_ref="ref", credential_mapping=dict(KNOWN))
    result = with_credentials(record, "ref", name, new, NOW)
    assert record.credential_mapping == KNOWN, "the old record is as it was"
    assert {**result.credential_mapping, name: None} == {**KNOWN, name: None}, "the other images are as they were"
    return result


@pytest.mark.parametrize(
    ("name", "new", "expected"),
    [
        ("new", of(TWO, ONE), of(TWO, ONE)),
        ("one", of(TWO), of(ONE, TWO)),
        ("two", of(PullSecret("uid3", "namespace1", "name3", "h")), None),
        ("two", NODE, NODE),
        ("account", NODE, NODE),
        (
            "two",
            of(PullSecret("uid2", "namespace2", "name2", "newhash")),
            of(ONE, PullSecret("uid2", "namespace2", "name2", "newhash")),
        ),
        (
            "two",
            of(PullSecret("uid3", "namespace2", "name3", "hash2")),
            of(ONE, TWO, PullSecret("uid3", "namespace2", "name3", "hash2")),
        ),
        ("new", of(accounts=(ACCOUNT,)), of(accounts=(ACCOUNT,))),
        ("account", of(accounts=(OTHER_ACCOUNT,)), of(accounts=(OTHER_ACCOUNT, ACCOUNT))),
        ("two", of(accounts=(ACCOUNT,)), of(ONE, TWO, accounts=(ACCOUNT,))),
        ("account", of(TWO), of(TWO, accounts=(ACCOUNT,))),
    ],
)
def test_new_credentials_are_added(name: str, new: ImageCredentials, expected: ImageCredentials | None) -> None:
    result = merged(name, new)
    if expected is None:
        expected = of(ONE, *new.kubernetes_secrets, TWO)
    assert result.credential_mapping[name] == expected
    assert result.last_updated_time == NOW


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("two", of(TWO)),
        ("account", of(accounts=(ACCOUNT,))),
        ("open", of(ONE)),
        ("open", of(accounts=(ACCOUNT,))),
        ("one", None),
        ("one", ImageCredentials()),
        ("new", None),
    ],
)
def test_what_is_nothing_new_changes_nothing(name: str, new: ImageCredentials | None) -> None:
    record = PulledRecord(last_updated_time=BEFORE, image_ref="ref", credential_mapping=dict(KNOWN))
    assert with_credentials(record, "ref", name, new, NOW) is record


def test_an_image_that_came_nobody_knows_how_has_a_record_that_opens_it_to_nobody() -> None:
    record = with_credentials(None, "ref", "image", None, NOW)
    assert record == PulledRecord(last_updated_time=NOW, image_ref="ref")
    assert with_credentials(None, "ref", "image", NODE, NOW).credential_mapping == {"image": NODE}
