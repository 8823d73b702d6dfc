"""Every attempt of a launch on one machine meets at a store of its own."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from accelerate.launchers.alone import USER_SIGNALS, pass_on
from accelerate.launchers.elastic import LOCALHOST, Supervised, _local_rendezvous, hand_on_user_signals

CONFIG = SimpleNamespace(run_id="run", rdzv_configs={"timeout": 60})


def test_addresses_of_the_attempt_before_are_not_found():
    rendezvous, address, port = _local_rendezvous(CONFIG, LOCALHOST, 0)
    assert (address, port) == (None, None)
    held = rendezvous.master_port
    first = rendezvous.next_rendezvous()
    assert first.bootstrap_store_info.master_port == held
    first.store.set("rank0", "where it was")
    second = rendezvous.next_rendezvous()
    assert second.bootstrap_store_info.master_port != held
    assert not second.store.check(["rank0"])


@pytest.mark.parametrize("name", USER_SIGNALS)
def test_user_signals_are_handed_on_and_end_nothing(name):
    sent, received = [], []
    child = SimpleNamespace(send_signal=sent.append)
    pass_on(child, signal.Signals[name], received)
    assert (sent, received) == ([signal.Signals[name]], [])


@pytest.mark.parametrize("name", USER_SIGNALS)
def test_workers_of_an_agent_get_user_signals(name):
    number, sent = signal.Signals[name], []
    before = {each: signal.getsignal(signal.Signals[each]) for each in USER_SIGNALS}
    agent = Supervised()
    try:
        hand_on_user_signals(agent)
        signal.raise_signal(number)  # there is nobody yet
        agent.watch = SimpleNamespace(send_all=sent.append)
        signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(signal.Signals[each], handler)
    assert sent == [number]
