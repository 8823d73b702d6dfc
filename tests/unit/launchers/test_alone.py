"""Signals for a single process: handed on once, and put back."""

from __future__ import annotations

import signal
import threading

import pytest

from accelerate.launchers import alone


class Child:
    """A process that only notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send_signal(self, number: int) -> None:
        self.sent.append(number)

    def kill(self) -> None:
        self.sent.append("killed")


@pytest.mark.parametrize(
    ("numbers", "from_terminal", "sent"),
    [
        ([signal.SIGTERM], False, [signal.SIGTERM]),
        ([signal.SIGTERM], True, [signal.SIGTERM]),
        ([signal.SIGINT], False, [signal.SIGINT]),
        ([signal.SIGINT], True, []),  # the terminal has told both
        ([signal.SIGINT, signal.SIGINT], True, ["killed"]),
        ([signal.SIGTERM, signal.SIGTERM], False, [signal.SIGTERM, signal.SIGTERM]),
    ],
)
def test_signals_are_handed_on(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], from_terminal: bool, sent: list[object]
) -> None:
    monkeypatch.setattr(alone, "_terminal_told_both", lambda: from_terminal)
    child, received = Child(), []
    for number in numbers:
        alone.pass_on(child, number, received)  # type: ignore[arg-type]
    assert child.sent == sent


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with alone.signals_handled(lambda number, frame: None):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_set_no_handlers() -> None:
    entered = []

    def enter() -> None:
        with alone.signals_handled(lambda number, frame: None):
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert entered == [True]
