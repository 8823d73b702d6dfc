"""What can't be launched, and why: each check refuses in four parts, before anything is started."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from accelerate.base.messages import message, nearest
from accelerate.config.enums import DistributedType
from accelerate.launchers.exclusions import deepspeed_file_agrees, settings_agree
from accelerate.launchers.mesh import mesh_fits
from accelerate.launchers.settings import AT_LAUNCH, NO_DEVICES, LaunchSettings

#: What the names of files end in that Python runs, or says itself why not.
PYTHON_ENDINGS = (".py", ".pyc", ".pyz")
#: How a zip file begins, which Python can run.
ZIP = b"PK"


def check(settings: LaunchSettings) -> None:
    """Refuse what can't be launched.

    Raises:
        ValueError: settings that contradict each other, or ask for more than there is.
        FileNotFoundError: there is no such script.
    """
    left_out = ABOUT_PROCESSES if settings.job is not None else ABOUT_THIS_MACHINE if settings.starts_elsewhere else ()
    for one in CHECKS:
        if one not in left_out:
            one(settings)


def _file_agrees(settings: LaunchSettings) -> None:
    """Refuse a config file whose lines contradict each other."""
    label, number = settings.label, settings.found.get("num_processes")
    if label == DistributedType.NO and number is not None and number.source == "file" and number.value > 1:
        raise _contradiction(
            settings, "num_processes", "a run of type NO has one process", "write the type of your devices"
        )
    cpu = settings.found.get("cpu")
    on_devices = label not in NO_DEVICES
    if on_devices and cpu is not None and cpu.source == "file" and cpu.value and not settings.is_flag("multi_gpu"):
        raise _contradiction(
            settings, "cpu", f"{label} is a run on accelerators", "write MULTI_CPU, or `use_cpu: false`"
        )


def _contradiction(settings: LaunchSettings, dest: str, why: str, do: str) -> ValueError:
    """Return the error for a line of the config file that contradicts the type of run."""
    return ValueError(
        message(
            given=f"{settings.said('distributed_type')} and {settings.said(dest)}",
            why=why,
            allowed="lines that agree, or flags that say otherwise for one launch",
            do=f"{do}, or write the file anew with `accelerate config`",
        )
    )


def _number_is_known(settings: LaunchSettings) -> None:
    """Refuse a config that leaves the number of processes to the launch, when the launch doesn't say it either."""
    number = settings.found.get("num_processes")
    left_open = number is not None and number.value == AT_LAUNCH
    if left_open or (number is None and settings.label == DistributedType.MULTI_CPU):
        given = (
            settings.said("num_processes")
            if left_open
            else f"{settings.said('distributed_type')} without num_processes"
        )
        raise ValueError(
            message(
                given=given,
                why="nothing says how many processes to start",
                allowed="a whole number, 1 or more",
                do="add --num_processes 2 (or however many), or write the number into the file",
            )
        )


def _several_for_several(settings: LaunchSettings) -> None:
    """Refuse one process where several were asked for by name, and numbers that don't divide by machines."""
    processes, machines = settings.num_processes, settings.num_machines
    if settings.is_flag("multi_gpu") and settings.get("multi_gpu") and processes < 2 and not settings.hardware.is_cpu:
        raise ValueError(
            message(
                given=f"--multi_gpu and {processes} process ({_where_from(settings)})",
                why="--multi_gpu is for two processes or more",
                allowed="--num_processes 2 or more, or no --multi_gpu",
                do="leave out --multi_gpu to run one process on one device",
            )
        )
    if processes % machines:
        raise ValueError(
            message(
                given=f"{processes} processes on {machines} machines",
                why="each machine starts the same number, and num_processes counts those of all machines together",
                allowed=f"a multiple of {machines}",
                do=f"for one process on each machine: --num_processes {machines}",
            )
        )


def _devices_suffice(settings: LaunchSettings) -> None:
    """Refuse more processes than there are accelerators."""
    here, devices = settings.processes_here, settings.devices
    if settings.on_cpu or settings.on_tpu or here <= max(devices, 1 if not settings.get("multi_gpu") else 0):
        return
    there = str(settings.hardware) if settings.chosen_ids is None else f"{devices} of {settings.hardware} (gpu_ids)"
    number = f"{here} process{'es' if here > 1 else ''}"
    raise ValueError(
        message(
            given=f"{number} on this machine ({_where_from(settings)}), which has {there}",
            why="each process needs an accelerator of its own",
            allowed=f"at most {devices}" if devices else f"--cpu: {here} processes on the CPU",
            do=f"--num_processes {devices}, or --cpu to run on the CPU"
            if devices
            else "add --cpu, and leave out --multi_gpu",
        )
    )


def _machines_can_meet(settings: LaunchSettings) -> None:
    """Refuse several machines without a meeting point, and a rank that isn't one."""
    machines, rank = settings.num_machines, int(settings.get("machine_rank"))
    if machines > 1 and not settings.get("main_process_ip"):
        raise ValueError(
            message(
                given=f"{machines} machines and no main_process_ip",
                why="the machines have to meet somewhere",
                allowed="the name or address of the machine of rank 0, the same on all of them",
                do="add --main_process_ip ADDRESS (and --main_process_port, by default 29500) on every machine",
            )
        )
    if rank >= machines:
        raise ValueError(
            message(
                given=f"machine_rank {rank} of {machines} machine{'s' if machines > 1 else ''}",
                why="ranks count from 0",
                allowed=f"0 to {machines - 1}",
                do="give each machine its own rank, and --num_machines their number",
            )
        )
    if machines > 1 and settings.get("main_process_port") == 0:
        raise ValueError(
            message(
                given=f"{machines} machines and main_process_port 0",
                why="each machine would look for another free port",
                allowed="one number, the same on every machine",
                do="add --main_process_port 29500, or leave it out",
            )
        )


def _script_exists(settings: LaunchSettings) -> None:
    """Refuse a script that isn't there; a module is found by Python."""
    script = settings.script
    if settings.get("module") or Path(script).exists() or (settings.get("no_python") and _is_program(script)):
        return
    folder = Path(script).parent
    near = nearest(Path(script).name, os.listdir(folder)) if folder.is_dir() else None
    raise FileNotFoundError(
        message(
            given=f"script {script}",
            why=f"there is no such file in {folder.resolve()}" if folder.is_dir() else f"there is no folder {folder}",
            allowed="the path of a Python file, or -m and the name of a module",
            do=f"did you mean {folder / near}?"
            if near
            else "correct the path; options of the launch come before the script",
        )
    )


def _script_is_python(settings: LaunchSettings) -> None:
    """Refuse a file that Python can't run; one that ends in .py has its errors shown by Python itself."""
    path = Path(settings.script)
    if settings.get("module") or settings.get("no_python") or path.suffix in PYTHON_ENDINGS or not path.is_file():
        return
    why = _why_not_python(path.read_bytes())
    if why is None:
        return
    raise ValueError(
        message(
            given=f"script {path}",
            why=f"it is started with Python, and {why}",
            allowed="a Python file, -m and the name of a module, or a program of its own with --no_python",
            do=f"to start it as it is: --no_python {path if len(path.parts) > 1 else Path('.') / path}",
        )
    )


def _why_not_python(content: bytes) -> str | None:
    """Say why the content of a file is no Python program; None if it may be one."""
    first = content.partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" not in first:
        return f"its first line names another program: {first.decode(errors='replace')}"
    if content.startswith(ZIP):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(content)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"line {line} of it isn't Python" if line else "its content isn't Python"
    return None


def _is_program(name: str) -> bool:
    """Whether the shell would find a program."""
    import shutil

    return shutil.which(name) is not None


def _where_from(settings: LaunchSettings) -> str:
    """Say where the number of processes comes from."""
    if settings.num_processes_is_said:
        return settings.said("num_processes")
    return "one for each device" if settings.devices and not settings.on_cpu else "the default"


CHECKS: tuple[Callable[[LaunchSettings], None], ...] = (
    settings_agree,
    deepspeed_file_agrees,
    _file_agrees,
    _number_is_known,
    _machines_can_meet,
    _several_for_several,
    mesh_fits,
    _devices_suffice,
    _script_exists,
    _script_is_python,
)
#: Checks that compare the run with this machine, or with what has to be said on it.
ABOUT_THIS_MACHINE = (_machines_can_meet, _devices_suffice)
#: Checks of processes that a launch starts; those of a job on SageMaker are SageMaker's business.
ABOUT_PROCESSES = (
    *ABOUT_THIS_MACHINE,
    _file_agrees,
    _number_is_known,
    _several_for_several,
    mesh_fits,
    _script_is_python,
)
