from __future__ import annotations

import pytest

from trikubelet.sim.programs import Life, Program, ProgramBook


def test_a_program_without_lives_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="lives"):
        Program(())


def test_the_last_life_repeats() -> None:
    program = Program((Life(duration=1), Life(duration=2)))
    assert [program.life(number).duration for number in range(4)] == [1, 2, 2, 2]


def test_a_container_that_crashes_twice_then_runs_forever() -> None:
    program = Program.crashes(2, after=5, exit_code=3)
    assert [(program.life(number).duration, program.life(number).exit_code) for number in range(3)] == [
        (5, 3),
        (5, 3),
        (None, 0),
    ]


def test_later_rules_win_and_empty_fields_fit_all() -> None:
    book = ProgramBook()
    anything, web, web_of_blue = Program.exits(1), Program.exits(2), Program.exits(3)
    book.add(anything)
    book.add(web, container="web")
    book.add(web_of_blue, container="web", pod="blue")
    assert book.find("other", (), "red") is anything
    assert book.find("web", (), "red") is web
    assert book.find("web", (), "blue") is web_of_blue


def test_a_rule_for_an_image_fits_its_full_reference() -> None:
    book = ProgramBook()
    job = Program.exits(1)
    book.add(job, image="job:1")
    assert book.find("any", {"docker.io/library/job:1"}, "pod") is job
    assert book.find("any", {"docker.io/library/job:2"}, "pod") == Program()


def test_the_same_rule_given_again_replaces_the_old_one() -> None:
    book = ProgramBook()
    book.add(Program.exits(1), container="web")
    book.add(Program.exits(2), container="web")
    assert book.find("web", (), "pod") == Program.exits(2)
