from __future__ import annotations

import builtins
import io

import pytest
from tqdm.auto import tqdm as original

from accelerate.state import PartialState
from accelerate.utils.tqdm import tqdm


def at_local_rank(rank):
    PartialState()
    PartialState._shared_state["local_process_index"] = rank


@pytest.mark.parametrize(
    ("rank", "options", "hidden"),
    [
        (0, {}, False),
        (1, {}, True),
        (1, {"main_process_only": False}, False),
        (0, {"disable": True}, True),
        (1, {"disable": False}, True),
        (1, {"disable": True, "main_process_only": False}, True),
    ],
)
def test_where_the_bar_appears(rank, options, hidden):
    at_local_rank(rank)
    bar = tqdm(range(3), file=io.StringIO(), **options)
    assert isinstance(bar, original)
    assert bar.disable is hidden
    assert list(bar) == [0, 1, 2]


def test_what_it_is_given_is_shown():
    screen = io.StringIO()
    assert list(tqdm(iterable=[1], desc="Epoch", file=screen)) == [1]
    assert "Epoch: 100%" in screen.getvalue()


@pytest.mark.parametrize(("first", "hidden"), [(True, True), (False, False)])
def test_a_boolean_first_argument_still_says_what_it_said(first, hidden):
    at_local_rank(1)
    with pytest.warns(FutureWarning, match=f"main_process_only={first}") as warned:
        bar = tqdm(first, range(2), file=io.StringIO())
    assert bar.disable is hidden
    assert list(bar) == [0, 1]
    assert [warning.filename for warning in warned] == [__file__]


def test_without_the_package_the_extra_is_named(monkeypatch):
    genuine = builtins.__import__

    def without_tqdm(name, *args, **kwargs):
        if name.startswith("tqdm"):
            raise ImportError(name)
        return genuine(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    with pytest.raises(ImportError, match=r"accelerate\[progress\]") as refusal:
        tqdm(range(3))
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
