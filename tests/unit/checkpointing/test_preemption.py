"""Stopping together: every rank leaves at the same boundary, wherever each one is when the signal comes."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from accelerate.checkpointing.preemption import Preemption, Rendezvous, check_signals
from accelerate.checkpointing.save import Job
from accelerate.checkpointing.workers import Shielded, shield_workers
from accelerate.state.gradient import GradientState


class Memory:
    """A store for ranks that are threads."""

    def __init__(self):
        self.values, self.lock = {}, threading.Lock()

    def set(self, key, value):
        with self.lock:
            self.values[key] = value.encode()

    def get(self, key):
        with self.lock:
            return self.values[key]

    def check(self, keys):
        with self.lock:
            return all(key in self.values for key in keys)


def race(size, asked, coupled, seed, steps=400):
    """Let ranks train as threads and return after which step each stopped (None: it came to its end).

    Args:
        asked: which rank gets a signal at which step.
        coupled: no rank finishes a step that another has not begun, as when gradients are averaged.
    """
    store, dice, stopped = Memory(), random.Random(seed), [None] * size
    pauses = [[dice.uniform(0, 0.002) for _ in range(steps)] for _ in range(size)]
    everyone = threading.Barrier(size)

    def train(rank):
        rendezvous = Rendezvous(rank, size, store, interval=0.003)
        for step in range(steps):
            if asked == (rank, step):
                rendezvous.asked = True
            threading.Event().wait(pauses[rank][step])
            if coupled:
                everyone.wait(30)
            if rendezvous.passes():
                stopped[rank] = step
                break
        rendezvous.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return stopped


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_all_ranks_stop_after_the_same_step(size, coupled, seed):
    asked = (seed % size, 10 + seed)
    stopped = race(size, asked, coupled, seed)
    assert len(set(stopped)) == 1
    assert stopped[0] is not None
    assert stopped[0] >= asked[1]


def test_nobody_stops_when_nobody_is_asked():
    assert race(3, None, True, 0, steps=30) == [None] * 3


@pytest.mark.parametrize("seed", range(4))
def test_a_signal_in_the_last_step_stops_all_ranks_or_none(seed):
    assert race(2, (0, 29), True, seed, steps=30) in ([29, 29], [None, None])


def test_one_rank_stops_after_the_step_it_is_in():
    rendezvous = Rendezvous(0, 1, None)
    assert not rendezvous.passes()
    rendezvous.asked = True
    assert rendezvous.passes()


def test_a_store_that_is_gone_is_the_end_of_the_watch():
    class Gone(Memory):
        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

    rendezvous = Rendezvous(0, 2, Gone(), interval=0.001)
    rendezvous._thread.join(30)
    assert not rendezvous._thread.is_alive()
    assert not rendezvous.passes()


@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGTERM, signal.SIGSTOP), ()])
def test_signals_that_cannot_be_handled_are_refused(signals):
    with pytest.raises(ValueError, match="Given: checkpoint_on_signal"):
        check_signals(signals)


def test_only_the_main_thread_can_handle_signals():
    raised = []

    def elsewhere():
        try:
            check_signals([signal.SIGTERM])
        except ValueError as error:
            raised.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "only the main thread" in raised[0]


def test_who_leaves_first_keeps_nobody_waiting():
    store = Memory()
    ends, waits = (Rendezvous(rank, 2, store, interval=0.003) for rank in range(2))
    ends.close()
    waits.asked = True
    waits._thread.join(30)
    assert not waits.passes()
    waits.close()


def test_who_can_no_longer_be_told_is_not_told():
    class Gone(Memory):
        def set(self, key, value):
            raise RuntimeError("Connection reset by peer")

    rendezvous = Rendezvous(0, 2, Gone(), interval=0.003)
    rendezvous.close()
    assert not rendezvous.passes()


class Watched:
    """A run whose boundaries are counted rather than acted upon."""

    def __init__(self, build, *lengths, alone=True):
        built = build(models=1, optimizers=1, schedulers=0, loaders=0)
        self.accelerator, self.model, self.optimizer = built.accelerator, built.models[0], built.optimizers[0]
        self.loaders = [self.accelerator.prepare(DataLoader(range(length))) for length in lengths]
        self.boundaries = 0
        rendezvous = SimpleNamespace(passes=self.passes, close=lambda: None, asked=True, alone=alone)
        self.preemption = Preemption([signal.SIGUSR2], rendezvous, GradientState(), leave=lambda: None)

    def passes(self):
        self.boundaries += 1
        return False

    def train(self, how="accelerator"):
        loss = self.model(torch.ones(1, 3)).sum()
        if how == "accelerator":
            self.accelerator.backward(loss)
        else:
            loss.backward()
        if how != "micro-batch":
            self.optimizer.step()


@pytest.fixture
def watch(build):
    """Return a function that watches the boundaries of loops over loaders of some lengths."""
    watched = []

    def watch(*lengths, **options):
        watched.append(Watched(build, *lengths, **options))
        return (watched[-1], *watched[-1].loaders)

    yield watch
    for each in watched:
        each.preemption.close()


@pytest.mark.parametrize("how", ["accelerator", "past the accelerator", "micro-batch"])
def test_boundaries_are_between_batches_and_before_a_further_pass(watch, how):
    run, loader = watch(3)
    seen = []
    for _ in range(2):
        for _ in loader:
            seen.append(run.boundaries)
            run.train("accelerator" if how == "micro-batch" and len(seen) == 3 else how)
    expected = [0, 1, 2, 3, 4, 5]
    if how == "micro-batch":  # whose backward goes past the accelerator, so that only the update is seen
        expected = [0, 0, 0, 1, 1, 1]
    assert seen == expected


def test_a_loop_that_does_not_train_has_no_boundaries(watch):
    run, training, validation = watch(3, 5)
    for _ in range(2):
        list(validation)
        for _ in training:
            run.train()
            list(validation)
        list(validation)
    assert run.boundaries == 5


def test_validation_before_the_update_of_a_step_changes_nothing(watch):
    run, training, validation = watch(3, 5)
    for _ in training:
        list(validation)
        run.train()
    assert run.boundaries == 2


def test_of_loops_that_run_in_turn_only_the_first_has_boundaries(watch):
    run, first, second = watch(3, 3)
    for _ in zip(first, second, strict=True):
        run.train()
    assert run.boundaries == 2


def test_a_loop_that_is_asked_for_batches_within_the_steps_of_another_has_no_boundaries(watch):
    run, first, second = watch(3, 20)
    others = iter(second)
    for _ in range(2):
        for _ in first:
            next(others)
            run.train()
    others.close()
    assert run.boundaries == 4  # the second pass begins while the other loop stands, which may be in a step


def test_steps_within_the_steps_of_a_loop_around_them_are_no_boundaries(watch):
    run, outer, inner = watch(3, 4)
    with pytest.warns(UserWarning, match="waits for a loop around this one"):
        for _ in outer:
            for _ in inner:
                run.train()
    assert run.boundaries == 2


def test_batches_are_read_by_hand(watch):
    run, loader = watch(3)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        run.train()
    assert next(batches, None) is None
    assert run.boundaries == 2


def test_who_reads_ahead_on_another_thread_has_no_boundaries(watch):
    run, loader = watch(3)

    def train():
        for _ in loader:
            run.train()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert run.boundaries == 0


def test_ranks_with_different_numbers_of_batches_have_only_the_beginning_of_passes_in_common(watch):
    run, loader = watch(3, alone=False)
    loader.batch_sampler.even_batches = False
    for _ in range(3):
        for _ in loader:
            run.train()
    assert run.boundaries == 2


def run(build, tmp_path, **options):
    run = build(tmp_path)
    run.accelerator.checkpoint_on_signal(signal.SIGUSR1, **options)
    return run


def train(run, signalled=None):
    """Train an epoch, with a signal in one of its batches."""
    for number, (inputs,) in enumerate(run.loaders[0]):
        if number == signalled:
            os.kill(os.getpid(), signal.SIGUSR1)
        run.accelerator.backward(run.models[0](inputs).sum())
        run.optimizers[0].step()
        run.optimizers[0].zero_grad()
        run.counters[0].count = number + 1


def test_a_signal_saves_after_the_batch_and_leaves_with_the_code(build, tmp_path):
    one = run(build, tmp_path)
    with pytest.raises(SystemExit) as left:
        train(one, signalled=1)
    assert left.value.code == 75
    assert one.counters[0].count == 2
    one.accelerator.end_training()
    other = build(tmp_path)
    position = other.accelerator.resume()
    assert (position.epoch, position.batches, other.counters[0].count) == (0, 2, 2)
    assert len(list(other.loaders[0])) == 2


@pytest.mark.parametrize("when", ["in the last batch", "between epochs"])
def test_what_follows_an_epoch_belongs_to_it(build, tmp_path, when):
    one = run(build, tmp_path, exit_code=9)
    train(one, signalled=3 if when == "in the last batch" else None)
    if when == "between epochs":
        os.kill(os.getpid(), signal.SIGUSR1)
    one.counters[0].count = 100  # whatever is done between two epochs
    with pytest.raises(SystemExit) as left:
        train(one)
    assert left.value.code == 9
    one.accelerator.end_training()
    other = build(tmp_path)
    position = other.accelerator.resume()
    assert (position.epoch, position.batches, other.counters[0].count) == (1, 0, 100)


def test_a_save_under_way_that_fails_is_told_and_followed_by_another(build, tmp_path, caplog):
    one = run(build, tmp_path)
    with patch.object(Job, "_write", side_effect=OSError("No space left on device")):
        one.accelerator.save_state(blocking=False)
        one.accelerator._background._thread.join()
    with pytest.raises(SystemExit), caplog.at_level(logging.WARNING):
        train(one, signalled=0)
    assert "No space left on device" in caplog.text
    one.accelerator.end_training()
    assert build(tmp_path).accelerator.resume().batches == 1


def test_a_signal_that_nobody_could_save_after_is_not_waited_for(build, tmp_path):
    accelerator = build().accelerator
    with pytest.raises(TypeError, match="checkpoint_on_signal"):
        accelerator.checkpoint_on_signal(signal.SIGUSR1)
    accelerator.project_configuration.automatic_checkpoint_naming = True
    with pytest.raises(ValueError, match="project_dir"):
        accelerator.checkpoint_on_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_loops_without_a_prepared_loader_ask_themselves(build, tmp_path):
    one = run(build, tmp_path / "p")
    one.accelerator.leave_if_asked()
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(SystemExit) as left:
        one.accelerator.leave_if_asked()
    assert left.value.code == 75
    one.accelerator.end_training()
    assert (tmp_path / "p" / "checkpoints" / "checkpoint_0" / "manifest.json").exists()


def test_nothing_is_asked_of_who_handles_no_signals(build):
    one = build()
    one.accelerator.leave_if_asked()
    assert GradientState().between_batches is None


def test_handlers_are_given_back(build, tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    one = run(build, tmp_path)
    assert signal.getsignal(signal.SIGUSR1) != before
    one.accelerator.checkpoint_on_signal(signal.SIGUSR2)
    assert signal.getsignal(signal.SIGUSR1) == before
    one.accelerator.end_training()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    assert GradientState().between_batches is None


def in_child(act):
    """Run `act` in a child process and return its status."""
    child = os.fork()
    if child == 0:
        act()
        signal.pause()
    return os.waitpid(child, 0)[1]


def test_a_child_process_dies_of_the_signal_as_ever(build, tmp_path):
    one = run(build, tmp_path)
    status = in_child(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGUSR1
    one.accelerator.end_training()


class Numbers(Dataset):
    """Which process has read each sample; everybody but the reading process may be told to stop at one of them."""

    def __init__(self, stops_at):
        self.stops_at = stops_at

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == self.stops_at:
            signals_from_outside(os.getpid())
        return float(index)


def signals_from_outside(pid):
    """Send SIGTERM and SIGUSR1 as a process that is not the parent."""
    subprocess.run(["kill", "-TERM", str(pid)], check=True, timeout=60)
    subprocess.run(["kill", "-USR1", str(pid)], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system doesn't say who has sent a signal")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_outlive_signals_that_go_to_every_process(build, tmp_path, context):
    one = run(build, tmp_path)
    one.accelerator.checkpoint_on_signal(signal.SIGTERM, signal.SIGUSR1)
    loader = one.accelerator.prepare(DataLoader(Numbers(2), num_workers=1, multiprocessing_context=context))
    assert [int(batch) for batch in loader] == list(range(6))
    one.accelerator.end_training()


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system doesn't say who has sent a signal")
def test_workers_end_when_their_own_process_says_so():
    def wait():
        Shielded((signal.SIGTERM,), None)(0)
        os.kill(os.getpid(), signal.SIGTERM)  # its own is somebody else's, too

    child = os.fork()
    if child == 0:
        wait()
        while True:
            time.sleep(1)
    time.sleep(0.2)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0


def test_the_users_own_worker_init_is_called_and_wrapped_once():
    called = []
    reading = SimpleNamespace(num_workers=1, worker_init_fn=called.append)
    for signals in ((signal.SIGUSR1,), (signal.SIGUSR1,), ()):
        shield_workers(SimpleNamespace(base_dataloader=reading), signals)
    assert reading.worker_init_fn.signals == ()
    assert reading.worker_init_fn.init == called.append
    before = threading.active_count()
    with patch("accelerate.checkpointing.workers.ignore_others"):
        reading.worker_init_fn(5)
    assert (called, threading.active_count()) == ([5], before)


def test_loaders_without_workers_are_left_alone():
    reading = SimpleNamespace(num_workers=0, worker_init_fn=None)
    shield_workers(SimpleNamespace(base_dataloader=reading), (signal.SIGUSR1,))
    assert reading.worker_init_fn is None
