"""Running several processes with torch's elastic agent, in this process.

What torchrun adds around its agent is a command line and an error report; ours are different, so the agent is
driven directly. Three things are changed in it, by :class:`Supervised`: a failure stops the other processes at
once, the first failure is known by its time, and nobody waits half a minute for a process that doesn't want to end.
And a machine with itself meets anew at each attempt, by :class:`Afresh`.

torch is imported when a run starts, and not before.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from accelerate.base.environ import patch_environment
from accelerate.base.messages import message
from accelerate.base.ports import is_port_in_use, who_holds
from accelerate.launchers.alone import USER_SIGNALS, signals_handled
from accelerate.launchers.console import say, say_failure, who
from accelerate.launchers.meeting import limit_of, meet, own_address, wait_for_main
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.rounds import Ended, Rounds
from accelerate.launchers.run_folder import RunFolder
from accelerate.launchers.torchrun import LOCALHOST, TORCHRUN
from accelerate.launchers.watch import FAILURE_GRACE, INTERRUPT_GRACE, Ending, Watch
from accelerate.launchers.watchdog import watchdog

#: Makes c10d open a store for each attempt; in one that is shared, processes find the addresses of those before.
NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
#: Seconds in which other machines hear that the main one has ended, and why, before its store is gone.
FAREWELL = 0.5
#: How often torch may close a group of processes that have ended, and the seconds in between.
CLOSINGS, PAUSE = 100, 0.05
CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"
TORCH_LOGGERS = ("torch.distributed.elastic", "torch.distributed.run")


def run(plan: LaunchPlan) -> int:
    """Start the processes of a plan and return 0, or the exit code of the first that failed.

    Raises:
        ValueError: the port that was asked for is taken.
        RuntimeError: the machines of the run don't meet.
        KeyboardInterrupt: Ctrl-C ended them.
    """
    if plan.hosts_meeting_point and plan.port:
        check_port(plan.port)
    own_store = {NOT_SHARED: "1"} if plan.num_machines > 1 else {}
    with RunFolder() as folder, patch_environment(**plan.env, **folder.env, **own_store), signals_handled(None):
        with watchdog(plan, folder):
            return _run(plan, folder)


def hand_on_user_signals(agent: Any) -> None:
    """Let the workers have signals by which batch systems tell a program something; torch's agent would die of them."""
    if threading.current_thread() is threading.main_thread():
        for name in USER_SIGNALS:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda number, frame: agent.hand_on(number))


def check_port(port: int) -> None:
    """Refuse a port on which somebody listens already.

    Raises:
        ValueError: names the process that holds it, or says how to find it.
    """
    if not is_port_in_use(port):
        return
    holder = who_holds(port)
    raise ValueError(
        message(
            given=f"main_process_port {port}",
            why=f"it is held by {holder}" if holder else "another process, which this user can't see, listens on it",
            allowed="a port that nobody uses; 0 picks one",
            do="add --main_process_port 0"
            + ("" if holder else f", or find the process with `sudo ss -ltnp 'sport = :{port}'`"),
        )
    )


def _run(plan: LaunchPlan, folder: RunFolder) -> int:
    """Drive the agent with the environment prepared."""
    with quiet_import():
        from torch.distributed import run as torchrun

    arguments = torchrun.parse_args(list(plan.argv[1 + len(TORCHRUN) :]))
    standalone, arguments.standalone = arguments.standalone, False
    if arguments.log_dir is None and arguments.tee == "0":
        arguments.log_dir = str(folder.path)  # torch makes a folder either way, and leaves its own behind
    with quiet_torch():
        config, entrypoint, words = torchrun.config_from_args(arguments)
        wait_for_main(plan, config.rdzv_configs)
        if plan.num_machines > 1 and config.rdzv_backend != "static":
            config.local_addr = own_address(plan)
        agent = meet(plan, lambda: _agent(plan, folder, _spec(config, entrypoint, words, standalone), config))
        hand_on_user_signals(agent)
        return _drive(plan, agent)


def _drive(plan: LaunchPlan, agent: Any) -> int:
    """Let the agent run until the end, and return 0 or the exit code of the process that failed first."""
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        result = meet(plan, agent.run)
    except SignalException as stopped:
        if stopped.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        return 128 + stopped.sigval
    except Ended as other:
        say(f"{other}; the processes of this machine were stopped")
        return other.code
    failure = agent.watch.root() if result is not None and result.is_failed() else None
    if failure is None:
        return 0
    _tell_others(plan, agent, failure)
    say_failure(plan, failure)
    return failure.exit_code


def _tell_others(plan: LaunchPlan, agent: Any, failure: Ending) -> None:
    """Tell the other machines which process has failed here, so that they end too."""
    rendezvous = agent._worker_group.spec.rdzv_handler
    if isinstance(rendezvous, Rounds):
        with suppress(RuntimeError):  # the main machine is gone, and they know
            rendezvous.end(f"{who(plan, failure)} {failure}", failure.exit_code)
            time.sleep(FAREWELL)


def _spec(config: Any, entrypoint: Any, words: list[str], standalone: bool) -> Any:
    """Return torch's description of the workers of this machine."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    if standalone:
        rendezvous, address, port = _local_rendezvous(config, LOCALHOST, 0)
    elif config.rdzv_backend == "static" and config.max_nodes == 1:
        rendezvous, address, port = _local_rendezvous(config, *_meeting_point(config))
    else:
        rendezvous, address, port = _rendezvous(config)
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(words),
        rdzv_handler=rendezvous,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=address,
        master_port=port,
        local_addr=config.local_addr,
    )


def _rendezvous(config: Any) -> tuple[Any, None, None]:
    """Return how the machines find each other; where the processes meet is said by it, each time anew."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

    if config.rdzv_backend == "static":
        return _rounds(config), None, None
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    return registry.get_rendezvous_handler(parameters), None, None


def _rounds(config: Any) -> Any:
    """Return the rendezvous of machines whose ranks are known, and which start again together."""
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    kind = type("Rendezvous", (Rounds, StaticTCPRendezvous), {})
    settings = config.rdzv_configs
    limit = int(limit_of(settings))
    return kind(*_meeting_point(config), int(settings["rank"]), config.max_nodes, config.run_id, limit)


def _meeting_point(config: Any) -> tuple[str, int]:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    address, port = parse_rendezvous_endpoint(config.rdzv_endpoint, default_port=-1)
    return address, port


def _local_rendezvous(config: Any, address: str, port: int) -> tuple[Any, None, None]:
    """Return a rendezvous of this machine with itself, on a port that it holds from the start (0: any free one)."""
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    kind = type("Rendezvous", (Afresh, StaticTCPRendezvous), {})
    handler = kind(address, port, 0, 1, config.run_id, int(config.rdzv_configs["timeout"]))
    handler.hold(port)
    return handler, None, None  # the rendezvous says where, each time anew


class Afresh:
    """What is ours in the rendezvous of a machine; stands before torch's `StaticTCPRendezvous`.

    Every attempt gets a store of its own. In that of the attempt before, processes would find the addresses of others
    that have ended, and wait for them.
    """

    master_addr: str
    master_port: int
    timeout: timedelta
    _store: Any
    _is_held = False

    def hold(self, port: int) -> None:
        """Open the store of the next attempt."""
        from torch.distributed import TCPStore

        self._store = TCPStore(self.master_addr, port, 1, is_master=True, timeout=self.timeout, multi_tenant=True)
        self.master_port = self._store.port
        self._is_held = True

    def next_rendezvous(self) -> Any:
        """Return where the processes of an attempt meet."""
        if not self._is_held:
            self.hold(0)
        self._is_held = False
        return super().next_rendezvous()  # type: ignore[misc]


def _agent(plan: LaunchPlan, folder: RunFolder, spec: Any, config: Any) -> Any:
    """Return torch's agent for the workers, supervised."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    agent = type("Agent", (Supervised, LocalElasticAgent), {"plan": plan, "folder": folder})
    return agent(
        spec=spec,
        logs_specs=config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
    )


class Supervised:
    """What is ours in the agent; stands before torch's `LocalElasticAgent`."""

    plan: LaunchPlan
    folder: RunFolder
    watch: Watch
    attempt = 0
    _pcontext: Any

    def _start_workers(self, worker_group: Any) -> Any:
        """Start the workers, and watch them."""
        self._say_restart(worker_group.spec)
        self.folder.forget()
        ids = super()._start_workers(worker_group)  # type: ignore[misc]
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        handlers = self._pcontext.subprocess_handlers
        self.watch = Watch({ranks[local]: handler.proc for local, handler in handlers.items()}, self.folder)
        self._pcontext.close = _closing(self._pcontext.close, self.watch)
        return ids

    def hand_on(self, number: int) -> None:
        """Send a signal to the workers, if there are any at the moment."""
        if hasattr(self, "watch"):
            self.watch.send_all(number)

    def _say_restart(self, spec: Any) -> None:
        """Say why processes are started again, if they are: one has failed here, or another machine begins again."""
        attempt, before = spec.max_restarts - self._remaining_restarts, self.attempt  # type: ignore[attr-defined]
        self.attempt = attempt
        failure = self.watch.root() if hasattr(self, "watch") else None
        if failure is not None and attempt > before:
            say(f"{who(self.plan, failure)} {failure}; starting all again (restart {attempt} of {spec.max_restarts})")
        elif hasattr(self, "watch"):
            say("another machine begins again, and so does this one")


def _closing(close: Any, watch: Watch) -> Any:
    """Return torch's `close` of a group of processes, with our way of ending them before it."""

    def closing(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        grace = {None: FAILURE_GRACE, signal.SIGINT: INTERRUPT_GRACE}.get(death_sig, float(timeout))
        watch.stop(death_sig, grace)
        for _ in range(CLOSINGS):
            # torch asks whether a process is gone before it signals it; our thread that waits for it can be in the way
            with suppress(ProcessLookupError):
                close(death_sig)
                return
            time.sleep(PAUSE)

    return closing


@contextmanager
def quiet_import() -> Iterator[None]:
    """Have torch's C++ code, imported inside the block, print errors alone in this process, rather than stacks.

    What the processes of the run print is theirs to choose; LOGLEVEL brings everything back.
    """
    if CPP_LEVEL in os.environ or "LOGLEVEL" in os.environ:
        yield
        return
    os.environ[CPP_LEVEL] = "ERROR"
    try:
        yield
    finally:
        del os.environ[CPP_LEVEL]


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep torch's agent from reporting what the launch reports itself; LOGLEVEL brings its log back."""
    loggers = [logging.getLogger(name) for name in sorted(sys.modules) if name.startswith(TORCH_LOGGERS)]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers if "LOGLEVEL" not in os.environ else []:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
