from __future__ import annotations

import pytest

from accelerate.comm.fake import FakeWorld, WorldBroken
from accelerate.config.enums import DistributedType
from accelerate.state.control import ProcessControl, do_nothing


class Process(ProcessControl):
    """A process of a world of threads, two to a machine."""

    def __init__(self, ranks):
        self._collectives = ranks
        self.process_index = ranks.rank
        self.local_process_index = ranks.rank % 2
        self.num_processes = ranks.world_size
        self.distributed_type = DistributedType.MULTI_CPU if ranks.world_size > 1 else DistributedType.NO


def everywhere(world_size, function):
    """Call `function(process)` on every rank and return the results in rank order."""
    return FakeWorld(world_size).run(lambda ranks: function(Process(ranks)))


@pytest.mark.parametrize("world_size", [1, 4])
def test_who_is_who(world_size):
    seen = everywhere(
        world_size, lambda p: (p.is_main_process, p.is_local_main_process, p.is_last_process, p.use_distributed)
    )
    ranks = range(world_size)
    assert seen == [(rank == 0, rank % 2 == 0, rank == world_size - 1, world_size > 1) for rank in ranks]


def test_a_label_of_no_means_not_distributed():
    def relabelled(process):
        process.distributed_type = DistributedType.NO
        return process.use_distributed

    assert everywhere(2, relabelled) == [False, False]


def test_another_process_can_be_the_main_one():
    def main(process):
        process._main_process_index = process.num_processes - 1
        return process.is_main_process

    assert everywhere(3, main) == [False, False, True]


@pytest.mark.parametrize(
    ("name", "world_size", "first"), [("main_process_first", 3, {0}), ("local_main_process_first", 4, {0, 2})]
)
def test_those_that_go_first_are_done_before_the_others_begin(name, world_size, first):
    done = []

    def body(process):
        with getattr(process, name)():
            before = set(done)
            done.append(process.process_index)
        return before

    seen = everywhere(world_size, body)
    assert all(first <= before for rank, before in enumerate(seen) if rank not in first)
    assert sorted(done) == list(range(world_size))


@pytest.mark.parametrize("name", ["main_process_first", "local_main_process_first"])
def test_a_first_process_that_raises_sets_the_others_free(name):
    finished = []

    def body(process):
        with getattr(process, name)():
            if process.is_main_process:
                raise OSError("no space left")
            finished.append(process.process_index)

    with pytest.raises(OSError, match="no space left"):
        everywhere(2, body)
    assert finished == [1]


def test_waiting_is_for_everyone():
    with pytest.raises(WorldBroken, match="rank 1 left before"):
        everywhere(2, lambda p: p.wait_for_everyone() if p.is_main_process else None)
    assert everywhere(2, lambda p: p.wait_for_everyone()) == [None, None]


def test_split_between_processes():
    def mine(process):
        with process.split_between_processes([1, 2, 3], apply_padding=True) as part:
            return part

    assert everywhere(2, mine) == [[1, 2], [3, 3]]


def where_am_i():
    """Say that it ran."""
    return "ran"


ON = [
    ("on_main_process", {}, {0}),
    ("on_local_main_process", {}, {0, 2}),
    ("on_last_process", {}, {3}),
    ("on_process", {"process_index": 2}, {2}),
    ("on_process", {"process_index": 9}, set()),
    ("on_local_process", {"local_process_index": 1}, {1, 3}),
]


@pytest.mark.parametrize(("name", "options", "where"), ON)
@pytest.mark.parametrize("with_parentheses", [False, True])
def test_decorated_functions_run_where_they_should(name, options, where, with_parentheses):
    def call(process):
        decorate = getattr(process, name)
        function = decorate(**options)(where_am_i) if with_parentheses else decorate(where_am_i, **options)
        assert (function.__name__, function.__doc__) == ("where_am_i", "Say that it ran.")
        return function()

    assert everywhere(4, call) == ["ran" if rank in where else None for rank in range(4)]


@pytest.mark.parametrize(("name", "options", "where"), ON)
def test_alone_everything_runs(name, options, where):
    assert everywhere(1, lambda p: getattr(p, name)(where_am_i, **options)()) == ["ran"]


def test_where_a_function_runs_is_asked_at_every_call():
    def call(process):
        function = process.on_main_process(where_am_i)
        process.process_index = 1 - process.process_index
        return function()

    assert everywhere(2, call) == [None, "ran"]


class Recorder(Process):
    @ProcessControl.on_main_process
    def record(self, value, *, twice=False):
        """Keep a value."""
        return (self.process_index, value, twice)

    @ProcessControl.on_last_process
    def close(self):
        return "closed"


def test_methods_are_decorated_in_the_body_of_a_class():
    results = FakeWorld(2).run(lambda ranks: (Recorder(ranks).record(5, twice=True), Recorder(ranks).close()))
    assert results == [((0, 5, True), None), (None, "closed")]
    assert Recorder.record.__doc__ == "Keep a value."


@pytest.mark.parametrize(
    ("name", "argument"), [("on_process", "process_index"), ("on_local_process", "local_process_index")]
)
def test_a_function_for_no_process_in_particular_is_refused(name, argument):
    with pytest.raises(ValueError, match=f"{name} without {argument}") as refusal:
        everywhere(1, lambda p: getattr(p, name)(where_am_i))
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_printing_once_per_machine(capsys):
    everywhere(4, lambda p: p.print("from", p.process_index, sep="-", end="!\n"))
    assert sorted(capsys.readouterr().out.splitlines()) == ["from-0!", "from-2!"]


def test_doing_nothing():
    assert do_nothing(1, key=2) is None
