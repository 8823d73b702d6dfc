"""Machines that wait for the main one, and what is said when they don't meet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from accelerate.launchers import meeting
from accelerate.launchers.plan import LaunchPlan


def plan(port: int, rank: int = 1, address: str = "127.0.0.1") -> LaunchPlan:
    return LaunchPlan("torchrun", (), num_processes=4, num_machines=2, machine_rank=rank, address=address, port=port)


@pytest.fixture
def free() -> Iterator[socket.socket]:
    """A port that is ours, and on which nobody listens yet."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def test_a_machine_waits_until_the_main_one_answers(free: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    listening = threading.Timer(0.8, free.listen)
    listening.start()
    meeting.wait_for_main(plan(free.getsockname()[1]), {}, patience=30)
    listening.join()
    assert capsys.readouterr().err == "", "it was soon there"


@pytest.mark.parametrize("one", [plan(1, rank=0), LaunchPlan("torchrun", ()), plan(0)])
def test_the_main_machine_and_a_single_one_wait_for_nobody(one: LaunchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "failure_to_connect", lambda *place: pytest.fail("somebody tried to connect"))
    meeting.wait_for_main(one, {})
    assert meeting.limit_of({}) == meeting.PATIENCE


def test_what_was_tried_is_said_in_between_and_at_the_end(
    free: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free.getsockname()[1]
    with pytest.raises(RuntimeError) as refused:
        meeting.wait_for_main(plan(port), {"timeout": "1"})
    assert str(refused.value).startswith(f"Given: machine 1 of 2, to meet the others at 127.0.0.1, port {port}\n")
    assert "connecting was tried for 1 s; the last time: connection refused" in str(refused.value)
    assert "--rdzv_conf timeout=SECONDS" in str(refused.value)
    capsys.readouterr()
    with pytest.raises(RuntimeError):
        meeting.wait_for_main(plan(port), {"join_timeout": 1})
    assert "waiting for the main machine at 127.0.0.1" not in capsys.readouterr().err


def test_a_long_wait_is_reported(
    free: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free.getsockname()[1]
    monkeypatch.setattr(meeting, "ATTEMPT", 0.2)
    with pytest.raises(RuntimeError):
        meeting.wait_for_main(plan(port), {}, patience=1)
    said = capsys.readouterr().err
    assert said == (
        f"accelerate launch: waiting for the main machine at 127.0.0.1, port {port}, up to 1 s: connection refused\n"
    )


def test_a_name_that_nobody_knows() -> None:
    error = meeting.failure_to_connect("no-such-host.invalid", 1)
    assert error is not None
    assert error.startswith("the name can't be resolved")


def test_an_address_that_swallows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(place: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert meeting.failure_to_connect("10.0.0.1", 1) == "no answer within 5 s"


def test_the_address_towards_the_main_machine() -> None:
    assert meeting.own_address(plan(29500)) is None, "the loopback address is no way to others"
    assert meeting.own_address(plan(29500, address="no-such-host.invalid")) is None


def test_machines_that_do_not_all_come_are_told_apart_from_defects() -> None:
    from torch.distributed import DistStoreError

    def fail() -> None:
        raise DistStoreError("1/2 clients joined\nframe #0: c10::Error")

    with pytest.raises(RuntimeError) as refused:
        meeting.meet(plan(29500), fail)
    assert "they weren't together after 0 s: 1/2 clients joined\n" in str(refused.value)
    assert "frame" not in str(refused.value)
    with pytest.raises(DistStoreError):
        meeting.meet(LaunchPlan("torchrun", ()), fail)
    assert meeting.meet(plan(29500), lambda: 3) == 3
    lost = meeting.not_met(plan(29500), 9.6, ConnectionResetError("reset"), lost=True)
    assert "the main machine was lost after 10 s: reset\n" in str(lost)
    assert meeting.first_line(ValueError()) == "ValueError"
