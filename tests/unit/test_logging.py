from __future__ import annotations

import copy
import io
import logging
import pickle
import threading

import pytest

from accelerate.comm.fake import FakeWorld
from accelerate.config.enums import DistributedType
from accelerate.logging import MultiProcessAdapter, get_logger
from accelerate.state import PartialState
from accelerate.state.control import ProcessControl


class Keep(logging.Handler):
    """Keeps every record."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture(autouse=True)
def _levels_are_put_back(monkeypatch):
    monkeypatch.delenv("ACCELERATE_LOG_LEVEL", raising=False)
    root = logging.getLogger().level
    yield
    logging.getLogger().setLevel(root)


@pytest.fixture
def logger():
    """A logger of its own for each test, at level INFO, that keeps its records in `logger.kept`."""
    bare = logging.Logger("test.logging", logging.INFO)
    bare.kept = Keep()
    bare.addHandler(bare.kept)
    return MultiProcessAdapter(bare, {})


def at_rank(rank, world_size=4):
    PartialState()
    PartialState._shared_state.update(
        process_index=rank, num_processes=world_size, distributed_type=DistributedType.MULTI_CPU
    )


def test_a_message_before_the_rank_is_known_is_refused(logger):
    for call in (logger.info, logger.debug, logger.warning_once):
        with pytest.raises(RuntimeError, match="neither a PartialState nor an Accelerator exists yet") as refusal:
            call("too early")
        text = str(refusal.value)
        assert all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
        assert "'too early'" in text
    assert PartialState._shared_state == {}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("options", "ranks"),
    [({}, {0}), ({"main_process_only": True}, {0}), ({"main_process_only": False}, {0, 2})],
)
def test_who_logs(logger, rank, options, ranks):
    at_rank(rank)
    logger.info("%s of %d", "one", 2, **options)
    assert logger.kept.messages == ([f"[RANK {rank}] one of 2"] if rank in ranks else [])


def test_the_level_decides_and_a_message_below_it_is_not_even_written(logger, monkeypatch):
    at_rank(0)
    monkeypatch.setattr(MultiProcessAdapter, "process", lambda *args: pytest.fail("not needed"))
    logger.debug("quiet")
    assert logger.kept.messages == []


def test_objects_and_percent_signs_are_messages_too(logger):
    at_rank(0)
    logger.info(ValueError("bad"))
    logger.info("100%")
    assert logger.kept.messages == ["[RANK 0] bad", "[RANK 0] 100%"]


def test_extra_reaches_the_record(logger):
    at_rank(0)
    logger.extra = {"run": "a", "step": 0}
    logger.info("x", extra={"step": 5})
    (record,) = logger.kept.records
    assert (record.run, record.step) == ("a", 5)


def call_everything(logger):
    """Log in every way; each call is on a line of its own, and the lines are returned."""
    first = call_everything.__code__.co_firstlineno
    logger.info("x")
    logger.log(logging.INFO, "x")
    logger.info("x", in_order=True)
    logger.log(logging.INFO, "x", in_order=True)
    logger.warning_once("x")
    logger.warning_once("y", in_order=True)
    try:
        raise ValueError
    except ValueError:
        logger.exception("x")
    return [first + offset for offset in (3, 4, 5, 6, 7, 8, 12)]


def test_the_line_of_the_caller_is_reported(logger):
    at_rank(0, 1)
    lines = call_everything(logger)
    assert [(record.filename, record.lineno) for record in logger.kept.records] == [
        ("test_logging.py", line) for line in lines
    ]
    assert {record.funcName for record in logger.kept.records} == {"call_everything"}


def test_a_wrapper_can_point_at_its_own_caller(logger):
    at_rank(0)

    def note(text):
        logger.info(text, stacklevel=3)

    note("x")
    assert logger.kept.records[0].funcName == "test_a_wrapper_can_point_at_its_own_caller"


class Process(ProcessControl):
    """A rank of a fake world, in the place of the state of its process."""

    def __init__(self, ranks):
        self._collectives = ranks
        self.process_index = ranks.rank
        self.num_processes = ranks.world_size


@pytest.fixture
def in_a_world(monkeypatch):
    """Run `function(logger, rank)` on the ranks of a world and return all messages in the order in which they came."""
    here = threading.local()

    class State:
        _shared_state = {"initialised": True}

        def __new__(cls):
            return here.process

    monkeypatch.setattr("accelerate.logging.PartialState", State)

    def run(world_size, function, levels=None):
        kept = Keep()

        def rank(ranks):
            here.process = Process(ranks)
            bare = logging.Logger("ranks", levels[ranks.rank] if levels else logging.INFO)
            bare.addHandler(kept)
            function(MultiProcessAdapter(bare, {}), ranks.rank)

        FakeWorld(world_size).run(rank)
        return kept.messages

    return run


ALL = ["[RANK 0] x", "[RANK 1] x", "[RANK 2] x"]


@pytest.mark.parametrize("options", [{}, {"main_process_only": False}])
def test_in_order_means_every_rank_after_the_one_before(in_a_world, options):
    for _ in range(5):
        assert in_a_world(3, lambda logger, rank: logger.info("x", in_order=True, **options)) == ALL


def test_in_order_with_different_levels_leaves_nobody_waiting(in_a_world):
    levels = [logging.INFO, logging.ERROR, logging.INFO]
    assert in_a_world(3, lambda logger, rank: logger.info("x", in_order=True), levels) == [ALL[0], ALL[2]]


def test_in_order_with_a_handler_that_raises_leaves_nobody_waiting(in_a_world):
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("disk full")

    def body(logger, rank):
        if rank == 1:
            logger.addHandler(Broken())
            with pytest.raises(OSError, match="disk full"):
                logger.info("x", in_order=True)
        else:
            logger.info("x", in_order=True)

    assert in_a_world(3, body) == ALL


def test_in_order_on_the_main_process_only_has_no_effect_and_says_so(in_a_world):
    def body(logger, rank):
        logger.info("x", in_order=True, main_process_only=True)

    with pytest.warns(UserWarning, match="in_order=True has no effect with main_process_only=True"):
        assert in_a_world(3, body) == ALL[:1]


def test_a_warning_is_given_once_for_the_same_arguments(logger):
    at_rank(0)
    for _ in range(3):
        logger.warning_once("slow: %s", [1])
        logger.warning_once("slow: %s", [2])
    assert logger.kept.messages == ["[RANK 0] slow: [1]", "[RANK 0] slow: [2]"]
    MultiProcessAdapter(logger.logger, {}).warning_once("slow: %s", [1])
    assert len(logger.kept.messages) == 3


def test_it_takes_the_place_of_a_logger(logger):
    handler = logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    assert logger.handlers == logger.logger.handlers
    logger.removeHandler(handler)
    assert handler not in logger.handlers
    logger.addFilter(lambda record: "secret" not in record.getMessage())
    at_rank(0)
    logger.info("secret")
    logger.info("open")
    assert logger.kept.messages == ["[RANK 0] open"]
    logger.setLevel("ERROR")
    assert logger.level == logger.getEffectiveLevel() == logging.ERROR
    assert logger.propagate
    logger.propagate = False
    assert logger.logger.propagate is False
    with pytest.raises(AttributeError, match="nonsense"):
        _ = logger.nonsense


def test_it_can_be_copied_and_pickled():
    logger = get_logger("accelerate.test.pickled")
    assert pickle.loads(pickle.dumps(logger)).logger is logger.logger
    assert copy.copy(logger).logger is logger.logger


@pytest.mark.parametrize(
    ("argument", "variable"), [("info", None), ("INFO", None), (logging.INFO, None), (None, "info"), ("info", "DEBUG")]
)
def test_the_level_is_set_on_the_logger_and_the_root(monkeypatch, argument, variable):
    if variable is not None:
        monkeypatch.setenv("ACCELERATE_LOG_LEVEL", variable)
    logger = get_logger("accelerate.test.level", argument)
    assert logger.logger.level == logging.getLogger().level == logging.INFO


def test_without_a_level_nothing_is_changed():
    logging.getLogger("accelerate.test.kept").setLevel(logging.CRITICAL)
    assert get_logger("accelerate.test.kept").logger.level == logging.CRITICAL


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="'inof'") as refusal:
        get_logger("accelerate.test.level", "inof")
    text = str(refusal.value)
    assert "Did you mean 'INFO'?" in text
    assert all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
