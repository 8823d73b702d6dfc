from __future__ import annotations

import copy
import pickle
import threading

import pytest

from accelerate.state.borg import Borg, SharedDict, ThreadLocalSharedDict


class Color(Borg):
    _shared_state = {}
    _known_attrs = ["hue", "brush"]
    _handles = frozenset({"brush"})

    def __init__(self, hue=None):
        super().__init__()
        if hue is not None:
            self.hue = hue
            self.brush = lambda: None  # can't be pickled


@pytest.fixture(autouse=True)
def _empty():
    Color._shared_state.clear()


def test_instances_share_what_any_of_them_is_given():
    first = Color("red")
    second = Color()
    second.weight = 3
    assert first.weight == 3
    assert second.hue == "red"
    assert first.__dict__ is second.__dict__ is Color._shared_state


def test_initialized_says_whether_there_is_anything():
    state = Color()
    assert not state.initialized
    Color("red")
    assert state.initialized
    Color._shared_state.clear()
    assert not state.initialized


def test_a_known_attribute_of_an_empty_state_says_that_it_was_reset():
    state = Color("red")
    Color._shared_state.clear()
    for name in ("hue", "brush"):
        with pytest.raises(AttributeError, match=r"of `Color`, which is empty") as refusal:
            getattr(state, name)
        text = str(refusal.value)
        assert "nothing was built yet, or it was reset since" in text
        assert all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_an_unknown_attribute_gets_the_plain_message():
    with pytest.raises(AttributeError, match=r"^'Color' object has no attribute 'shape'$"):
        _ = Color("red").shape


def test_a_property_that_needs_a_missing_attribute_reports_the_reset():
    class Named(Color):
        @property
        def name(self):
            return self.hue.upper()

    with pytest.raises(AttributeError, match="which is empty"):
        _ = Named().name


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_copy_joins_the_state_of_its_process(duplicate):
    state = Color("red")
    twin = duplicate(state)
    twin.hue = "blue"
    assert state.hue == "blue"
    assert twin.__dict__ is state.__dict__


def test_a_copy_in_a_process_without_a_state_keeps_plain_facts_and_starts_nothing():
    carried = pickle.dumps(Color("red"))
    Color._shared_state.clear()
    arrived = pickle.loads(carried)
    assert arrived.hue == "red"
    assert Color._shared_state == {}
    with pytest.raises(AttributeError):
        _ = arrived.brush


def test_threads_have_dictionaries_of_their_own_where_replicas_are_threads():
    class State:
        shared = ThreadLocalSharedDict()

    State.shared["rank"] = 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(dict(State.shared)))
    thread.start()
    thread.join()
    assert seen == [{}]
    assert State.shared == {"rank": 0}

    state = State()
    state.shared = {"rank": 5}
    assert State().shared == {"rank": 5}


def test_without_torch_xla_states_are_plain_dictionaries():
    assert SharedDict is dict
