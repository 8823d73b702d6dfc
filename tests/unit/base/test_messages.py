"""Errors in four parts, nearest names, warnings that come once."""

from __future__ import annotations

import warnings

import pytest

from accelerate.base import messages


def test_a_message_has_four_parts_in_order():
    text = messages.message(given="x=3", why="it is odd", allowed="even numbers", do="pass 2")
    assert text == "Given: x=3\nWhy not: it is odd\nAllowed: even numbers\nWhat to do: pass 2"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("num_proceses", "num_processes"),
        ("NUM_PROCESSES", "num_processes"),
        ("mixed-precision", "mixed_precision"),
        ("zzz", None),
    ],
)
def test_nearest(name, found):
    assert messages.nearest(name, ["num_processes", "num_machines", "mixed_precision"]) == found


def test_did_you_mean_names_the_nearest_or_lists_the_choices():
    assert messages.did_you_mean("fp61", ["fp16", "bf16"]) == "Did you mean 'fp16'?"
    assert messages.did_you_mean("zzz", ["fp16", "bf16"]) == "Choose one of 'bf16', 'fp16'."


def test_a_warning_comes_once_per_text_and_category():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            messages.warn_once("the same")
            messages.warn_once("the same", FutureWarning)
        messages.warn_once("another")
    assert [(str(one.message), one.category) for one in caught] == [
        ("the same", UserWarning),
        ("the same", FutureWarning),
        ("another", UserWarning),
    ]


def test_a_warning_points_at_who_called_the_function_that_gives_it():
    def library_function():
        messages.warn_once("careful")

    with pytest.warns(UserWarning, match="careful") as caught:
        library_function()
    assert caught[0].filename == __file__


def test_forgotten_warnings_come_again():
    with pytest.warns(UserWarning, match="again"):
        messages.warn_once("again")
    messages.forget_warnings()
    with pytest.warns(UserWarning, match="again"):
        messages.warn_once("again")
