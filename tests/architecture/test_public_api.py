"""The public names, signatures, values and import paths are those of Accelerate 1.15, or are listed as absent."""

from __future__ import annotations

import pytest

from tests.architecture import facts

MODULES = sorted(facts.facts())
NOT_YET = facts.read_list(facts.NOT_YET)
LEFT_OUT = facts.read_list(facts.LEFT_OUT)
DIFFERS = facts.read_list(facts.DIFFERS)


@pytest.mark.parametrize("module", MODULES)
def test_every_recorded_name_is_there_or_listed(module: str) -> None:
    missing = [
        entry
        for entry in facts.absent(module)
        if not facts.is_listed(entry, NOT_YET) and not facts.is_listed(entry, LEFT_OUT)
    ]
    assert missing == []


@pytest.mark.parametrize("module", MODULES)
def test_what_is_there_takes_what_1_15_takes(module: str) -> None:
    wrong = {entry: said for entry, said in facts.differences(module).items() if not facts.is_listed(entry, DIFFERS)}
    assert wrong == {}


@pytest.mark.parametrize("listed", [NOT_YET, LEFT_OUT], ids=["not_yet", "left_out"])
def test_what_is_listed_as_absent_is_absent(listed: dict[str, str]) -> None:
    arrived = [entry for entry in listed if facts.resolve(*entry.split(":")) is not facts.ABSENT]
    assert arrived == [], "remove these lines: the names are there now"


def test_every_entry_of_the_lists_is_a_recorded_name() -> None:
    recorded = {f"{module}:{name}" for module in MODULES for name, _ in facts.entries(module)} | set(MODULES)
    assert sorted((NOT_YET.keys() | LEFT_OUT.keys() | DIFFERS.keys()) - recorded) == []


def test_every_difference_still_differs_and_says_why() -> None:
    found = {entry for module in MODULES for entry in facts.differences(module)}
    assert sorted(DIFFERS.keys() - found) == [], "remove these lines: there is no difference"
    assert [entry for entry, reason in (DIFFERS | LEFT_OUT).items() if not reason] == []
