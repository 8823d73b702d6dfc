"""Training functions on several processes, from a notebook or a test: what `accelerate launch` is to scripts.

Processes are forked where the device allows it, so that a function which was typed into a cell, and can't be pickled,
is simply there. A forked process can't use an accelerator that its parent has touched, which is refused before
anything starts.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.base.environ import patch_environment, read
from accelerate.base.messages import message, nearest
from accelerate.base.ports import get_free_port, is_port_in_use
from accelerate.config.enums import PrecisionType
from accelerate.devices.specs import CUDA, XLA
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.run_folder import RunFolder
from accelerate.launchers.torchrun import LOCALHOST
from accelerate.launchers.worker import claim

#: What a forked process is told: its launcher, not the function, ends the process group; and it computes on one
#: thread, since OpenMP hangs after a fork in regions that the parent has run in parallel.
FORKED = {"FORK_LAUNCHED": "1", "OMP_NUM_THREADS": "1"}
#: Where the first process that fails writes its traceback.
TRACE = "trace"
#: Modules that touch an accelerator when they are imported.
TOUCHING = ("bitsandbytes",)


class PrepareForLaunch:
    """A function as a process calls it: with its rank first, which becomes what `Accelerator` looks for.

    Args:
        launcher: the function.
        distributed_type: the kind of run; other than XLA and NO, ranks are set from `index`.
        debug: whether the processes meet in a file rather than at a port.
    """

    def __init__(self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False) -> None:
        self.launcher = launcher
        self.distributed_type = distributed_type
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        """Call the function with `args` as process `index` of this machine."""
        with patch_environment(**FORKED, **self._ranks(index)):
            _compute_on_one_thread()
            self.launcher(*args)

    def _ranks(self, index: int) -> dict[str, str]:
        """Return the variables that hold the ranks; on TPUs its own library knows them."""
        kind = str(getattr(self.distributed_type, "value", self.distributed_type))
        if kind == XLA.label or (kind == "NO" and not self.debug):
            return {}
        here, node = int(read("NPROC", "1") or 1), int(read("NODE_RANK", "0") or 0)
        return {"LOCAL_RANK": str(index), "RANK": str(node * here + index)}


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
    hosted = _hosted_notebook()
    if hosted and _has_tpu():
        _run_on_tpu(function, args, mixed_precision, num_processes)
        return
    if num_processes is None and hosted and _devices() < 2:
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
        print(f"Starting on {_device_name()}, in this process.")
        with patch_environment(ACCELERATE_MIXED_PRECISION=mixed_precision):
            function(*args)
        return
    start_method = "spawn" if _must_spawn() else "fork"
    _check_untouched(start_method)
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


def run_plan(
    plan: LaunchPlan, function: Callable[..., Any], args: tuple[Any, ...], *, start_method: str, **settings: Any
) -> None:
    """Carry out a plan whose processes call a function: through torch's elastic agent.

    Args:
        plan: how many processes there are, and what their variables are.
        function: what each calls.
        args: with what.
        start_method: "fork" or "spawn".
        settings: of torch's `LaunchConfig`.

    Raises:
        RuntimeError: a process failed.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from accelerate.launchers.elastic import quiet_torch

    config = LaunchConfig(
        min_nodes=plan.num_machines,
        max_nodes=plan.num_machines,
        nproc_per_node=plan.processes_here,
        start_method=start_method,
        **settings,
    )
    with RunFolder() as folder, patch_environment(**plan.env), quiet_torch():
        try:
            elastic_launch(config, Recorded(function, folder.path))(*args)
        except ChildFailedError as error:
            raise RuntimeError(_failure(plan, error, folder.path / TRACE)) from None


class Recorded:
    """A function whose exception torch's agent gets to know, with the traceback.

    Args:
        function: what to call.
        folder: where the first process that fails says so; its peers lose their peer, and fail after it.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.function = function
        self.folder = folder
        self.__qualname__ = self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, *args: Any) -> None:
        """Call the function; what it returns stays in the process."""
        from torch.distributed.elastic.multiprocessing.errors import record

        if read("FORK_LAUNCHED"):
            _compute_on_one_thread()
        record(self._call)(*args)

    def _call(self, *args: Any) -> None:
        try:
            self.function(*args)
        except BaseException as error:
            if claim(self.folder, error):
                told = f"rank {read('RANK')} raised {type(error).__name__}"
                (self.folder / TRACE).write_text(f"{told}\n{traceback.format_exc()}", encoding="utf-8")
            raise


def _compute_on_one_thread() -> None:
    """Tell torch what OMP_NUM_THREADS would have told it, had it been imported in this process."""
    import torch

    torch.set_num_threads(1)


def _failure(plan: LaunchPlan, error: Any, trace: Path) -> str:
    """Return what to say of the first process that failed: its traceback, or how it ended if it couldn't say."""
    given = f"`{plan.script}` failed on {plan.num_processes} processes"
    if trace.is_file():
        return f"{given}: {trace.read_text(encoding='utf-8').rstrip()}"
    rank, first = error.get_first_failure()
    how = f"exit code {first.exitcode}" if first.exitcode >= 0 else f"signal {-first.exitcode}"
    return f"{given}: rank {rank} ended with {how}"


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


def _check_untouched(start_method: str) -> None:
    """Refuse what processes can't share with the notebook: a state that is set up, an accelerator in use."""
    states = sys.modules.get("accelerate.state.accelerator_state")
    if states is not None and states.AcceleratorState._shared_state:
        raise ValueError(
            message(
                given="a notebook that has built an Accelerator",
                why="the processes would inherit what it holds, and take themselves for that one process",
                allowed="an Accelerator that is built inside the function",
                do="restart the kernel, and move the cell that builds the Accelerator into the function",
            )
        )
    if start_method != "fork":
        return
    touched = [name for name in TOUCHING if name in sys.modules and _devices()]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        touched.append("CUDA")
    if touched:
        raise ValueError(
            message(
                given=f"a notebook that has used {' and '.join(touched)}",
                why="an accelerator that was in use before processes are forked can't be used in them",
                allowed="imports of, and tensors on, the accelerator inside the function only",
                do="restart the kernel, and move what touches the accelerator into the function",
            )
        )


def _port(wanted: int, machines: int) -> int:
    """Return the port to meet at: on one machine another one when it is taken; several have to agree on one."""
    if machines == 1 and (wanted == 0 or is_port_in_use(wanted)):
        return int(get_free_port())
    return wanted


def _hosted_notebook() -> bool:
    """Whether this is a notebook of Colab or Kaggle."""
    shell = sys.modules.get("IPython")
    inside_colab = shell is not None and "google.colab" in str(shell.get_ipython())
    return inside_colab or any(read(name) is not None for name in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"))


def _has_tpu() -> bool:
    """Whether the machine has a TPU and torch_xla knows it."""
    import importlib.util

    return read("TPU_NAME") is not None and importlib.util.find_spec("torch_xla") is not None


def _run_on_tpu(
    function: Callable[..., Any], args: tuple[Any, ...], mixed_precision: str, num_processes: int | None
) -> None:
    """Call the function on the cores of the TPU, through torch_xla."""
    import torch_xla

    env = {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    with patch_environment(**env):
        launch = PrepareForLaunch(function, distributed_type=XLA.label)
        torch_xla.launch(launch, args=args, start_method="fork", debug_single_process=num_processes == 1)


def _devices() -> int:
    """Return how many accelerators torch finds, without setting any up."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _device_name() -> str:
    """Return how to call the device that one process gets."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "the CPU" if found is None else f"one device of type {found.type}"


def _must_spawn() -> bool:
    """Whether the accelerators can't be used in forked processes: XPU, and ROCm's CUDA."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and (found.type == "xpu" or (found.type == CUDA.name and torch.version.hip is not None))


def _loopback() -> str:
    """Return the name of the network interface of this machine with itself."""
    return "lo0" if sys.platform == "darwin" else "lo"
