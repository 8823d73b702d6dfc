"""Training functions on several processes, from a notebook or a test: what `accelerate launch` is to scripts.

Processes are forked where the device allows it, so that a function which was typed into a cell, and can't be pickled,
is simply there. A forked process can't use an accelerator that its parent has touched, which is refused before
anything starts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.base.environ import patch_environment
from accelerate.base.messages import message, nearest
from accelerate.base.ports import get_free_port, is_port_in_use
from accelerate.config.enums import PrecisionType
from accelerate.devices.specs import XLA
from accelerate.launchers import notebook, on_tpu
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.prepared import FORKED, PrepareForLaunch
from accelerate.launchers.recorded import run_plan
from accelerate.launchers.torchrun import LOCALHOST


def notebook_launcher(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str = "29500",
    master_addr: str = LOCALHOST,
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: dict[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Call `function(*args)` in several processes of this machine, and return when all have returned.

    The `Accelerator` belongs inside the function. One process is this one: nothing is started.

    Args:
        function: what to run; it may be defined in the notebook.
        args: what it is called with.
        num_processes: how many processes on each machine; by default one where Colab or Kaggle has fewer than two
            accelerators, and all cores of a TPU.
        mixed_precision: "no", "fp16", "bf16" or "fp8", for an `Accelerator` that isn't told otherwise.
        use_port: the port by which the processes meet; on one machine another is taken when it is in use, or "0".
        master_addr: the address of the machine of rank 0.
        node_rank: which of `num_nodes` machines this is, from 0.
        num_nodes: on how many machines a notebook calls this.
        rdzv_backend: how machines find each other: "static" or "c10d".
        rdzv_endpoint: where they do, by default `master_addr:use_port`.
        rdzv_conf: more settings of that, of torch's `LaunchConfig`.
        rdzv_id: a name for the run, the same on all machines.
        max_restarts: how often to start all processes again after one has failed.
        monitor_interval: seconds between two looks at the processes.
        log_line_prefix_template: what torch puts before the lines of each process.

    Raises:
        ValueError: no number of processes, an unknown precision, a `node_rank` that doesn't exist, or something that
            forked processes can't do without, such as accelerators that nobody has used, was lost already.
        RuntimeError: a process failed; the message ends with its traceback.
    """
    _check_arguments(mixed_precision, node_rank, num_nodes)
    hosted = notebook.hosted_notebook()
    if hosted and notebook.has_tpu():
        notebook.check_no_accelerator()
        on_tpu.call_on_every_core(PrepareForLaunch(function, XLA.label), args, num_processes, mixed_precision)
        return
    if num_processes is None and hosted and notebook.devices() < 2:
        num_processes = 1
    if num_processes is None:
        raise ValueError(
            message(
                given="notebook_launcher without num_processes",
                why="only the notebooks of Colab and Kaggle are known to have few devices",
                allowed="a whole number, 1 or more",
                do="pass num_processes=2, or however many devices the function should train on",
            )
        )
    if num_processes * num_nodes == 1:
        print(f"Starting on {notebook.device_name()}, in this process.")
        with patch_environment(ACCELERATE_MIXED_PRECISION=mixed_precision):
            function(*args)
        return
    start_method = "spawn" if notebook.must_spawn() else "fork"
    notebook.check_untouched(start_method)
    plan = LaunchPlan(
        launcher="notebook",
        argv=(getattr(function, "__name__", repr(function)),),
        env={"ACCELERATE_MIXED_PRECISION": mixed_precision, **(FORKED if start_method == "fork" else {})},
        num_processes=num_processes * num_nodes,
        num_machines=num_nodes,
        machine_rank=node_rank,
        address=master_addr,
        port=_port(int(use_port), num_nodes),
        script=getattr(function, "__name__", repr(function)),
    )
    conf = {"rank": node_rank, **(rdzv_conf or {})} if rdzv_backend == "static" else dict(rdzv_conf or {})
    run_plan(
        plan,
        function,
        args,
        start_method=start_method,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint or f"{master_addr}:{plan.port}",
        rdzv_configs=conf,
        run_id=rdzv_id,
        max_restarts=max_restarts,
        monitor_interval=monitor_interval,
        **({"log_line_prefix_template": log_line_prefix_template} if log_line_prefix_template else {}),
    )


def debug_launcher(function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int = 2) -> None:
    """Call `function(*args)` in several processes on the CPU of this machine, as tests do.

    The processes meet in a file of their own, so that several such runs don't disturb each other.

    Args:
        function: what to run.
        args: what it is called with.
        num_processes: how many processes.

    Raises:
        Exception: torch's `ProcessRaisedException`, with the traceback of the first process that failed.
    """
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory(prefix="accelerate-debug-") as folder:
        env = {
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": LOCALHOST,
            "MASTER_PORT": "29500",
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_USE_CPU": "yes",
            "ACCELERATE_DEBUG_RDV_FILE": str(Path(folder) / "meeting"),
            "GLOO_SOCKET_IFNAME": _loopback(),
        }
        with patch_environment(**env):
            start_processes(PrepareForLaunch(function, debug=True), args, nprocs=num_processes, start_method="fork")


def _check_arguments(mixed_precision: str, node_rank: int, num_nodes: int) -> None:
    """Refuse an unknown precision, and a rank of a machine that doesn't exist."""
    known = [one.value for one in PrecisionType]
    if str(mixed_precision).lower() not in known:
        near = nearest(str(mixed_precision), known)
        raise ValueError(
            message(
                given=f"mixed_precision={mixed_precision!r}",
                why="there is no such precision",
                allowed=", ".join(known),
                do=f"did you mean {near!r}?" if near else "choose one of these",
            )
        )
    if not 0 <= node_rank < num_nodes:
        raise ValueError(
            message(
                given=f"node_rank={node_rank} of {num_nodes} machine{'s' if num_nodes > 1 else ''}",
                why="ranks count from 0",
                allowed=f"0 to {num_nodes - 1}",
                do="give each machine its own node_rank, and num_nodes their number",
            )
        )


def _port(wanted: int, machines: int) -> int:
    """Return the port to meet at: on one machine another one when it is taken; several have to agree on one."""
    if machines == 1 and (wanted == 0 or is_port_in_use(wanted)):
        return int(get_free_port())
    return wanted


def _loopback() -> str:
    """Return the name of the network interface of this machine with itself."""
    return "lo0" if sys.platform == "darwin" else "lo"
