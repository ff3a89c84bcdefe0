"""The picture of a life has the phases that were."""

from __future__ import annotations

import re
from functools import cache

import pytest

from trikubelet.sim.life import LifeOptions, LifeSummary, live
from trikubelet.sim.picture import COLOURS, PhasePicture

pytestmark = pytest.mark.together("drawn life")  # which two tests look at
OPTIONS = LifeOptions(pods=3, hours=0.1, seed=5, mean_pod_hours=0.05)


@cache
def drawn_life() -> tuple[LifeSummary, PhasePicture]:
    picture = PhasePicture()
    return live(OPTIONS, picture=picture), picture


def test_each_place_has_a_row_with_the_phases_of_its_pods() -> None:
    summary, picture = drawn_life()
    drawn = picture.draw()
    bars = re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="10" fill="(#\w+)"/>', drawn)
    assert {fill for *_, fill in bars} == {colour for _, colour in COLOURS.values()}
    assert len({top for _, top, *_ in bars}) == 3
    assert summary.pods_run <= len(bars) <= summary.transitions
    assert max(float(left) + float(width) for left, _, width, _ in bars) <= 1000


def test_the_picture_changes_nothing_in_the_life() -> None:
    assert drawn_life()[0] == live(OPTIONS)


def test_a_life_without_pods_can_be_drawn() -> None:
    assert PhasePicture().draw().startswith("<svg ")
