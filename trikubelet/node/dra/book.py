"""Which claims are prepared, and for which pods. Pure.

The rule that all else rests on: before a driver is asked to prepare a claim, the pod is in the book and on the disk;
and a claim leaves the book only when the drivers have undone it and no pod is left. So what is not in the book is
prepared nowhere.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trikubelet.node.dra.model import ClaimDevice, ClaimKey, ClaimState

ANY_DRIVER: Final = "<any>"
"""In counts: all claims, whoever's devices they have."""


class ClaimBook:
    """The claims of this node's pods."""

    def __init__(self, claims: Iterable[ClaimState] = ()) -> None:
        self._claims: dict[ClaimKey, ClaimState] = {claim.key: claim for claim in claims}

    def __iter__(self) -> Iterator[ClaimState]:
        """By namespace and name."""
        return (claim for _, claim in sorted(self._claims.items()))

    def get(self, key: ClaimKey) -> ClaimState | None:
        return self._claims.get(key)

    def pods(self) -> frozenset[str]:
        """UIDs of those that use a claim, or did."""
        return frozenset().union(*(claim.pods for claim in self._claims.values()))

    def used_by(self, uid: str) -> list[ClaimState]:
        """The claims of a pod."""
        return [claim for claim in self if uid in claim.pods]

    def enter(self, uid: str, claims: Iterable[ClaimState]) -> list[ClaimState]:
        """Put a pod down for claims as they are read from the API server. Returns those that drivers have to prepare.

        Raises ResourceClaimError when a claim of that name is still here that was another object; nothing has changed.
        """
        claims = list(claims)
        for claim in claims:
            known = self._claims.get(claim.key)
            if known is not None and known.uid != claim.uid:
                raise ResourceClaimError(
                    f"old ResourceClaim with same name {claim.name} and different UID {known.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
        lacking: list[ClaimState] = []
        for claim in claims:
            known = self._claims.get(claim.key, claim)
            entered = self._claims[claim.key] = attrs.evolve(known, pods=known.pods | {uid})
            if not entered.prepared:
                lacking.append(entered)
        return lacking

    def set_prepared(self, key: ClaimKey, devices: Mapping[str, tuple[ClaimDevice, ...]]) -> None:
        """All drivers of a claim have prepared it, and this is what each has given."""
        claim = self._claims[key]
        drivers = {driver: devices.get(driver, ()) for driver in claim.drivers}
        self._claims[key] = attrs.evolve(claim, drivers=drivers, prepared=True)

    def leave(self, uid: str, keys: Iterable[ClaimKey]) -> list[ClaimState]:
        """A pod does not use these claims any more. Returns those that no other uses, for drivers to undo.

        They stay, the pod with them, until `forget`: whether they are prepared is not known from now on.
        """
        last: list[ClaimState] = []
        for key in keys:
            claim = self._claims.get(key)
            if claim is None or uid not in claim.pods:
                continue
            others = claim.pods - {uid}
            if others:
                self._claims[key] = attrs.evolve(claim, pods=others)
            else:
                self._claims[key] = attrs.evolve(claim, prepared=False)
                last.append(self._claims[key])
        return last

    def forget(self, keys: Iterable[ClaimKey]) -> None:
        """These are undone."""
        for key in keys:
            self._claims.pop(key, None)

    def pods_with(self, driver: str, devices: Iterable[tuple[str, str]]) -> frozenset[str]:
        """UIDs of the pods whose claims have one of these devices, pools and names."""
        wanted = set(devices)
        return frozenset().union(
            *(
                claim.pods
                for claim in self._claims.values()
                if any((device.pool, device.name) in wanted for device in claim.drivers.get(driver, ()))
            )
        )

    def in_use(self) -> dict[str, int]:
        """How many claims are prepared: by driver, and by `ANY_DRIVER` all of them."""
        prepared = [claim for claim in self._claims.values() if claim.prepared]
        by_driver = Counter(driver for claim in prepared for driver in claim.drivers)
        return {**by_driver, ANY_DRIVER: len(prepared)}
