"""Settings that contradict each other: both are named, with what each implies."""

from __future__ import annotations

from itertools import combinations

from accelerate.base.messages import message
from accelerate.config.deepspeed import SECTION
from accelerate.config.deepspeed_config import content_of
from accelerate.launchers.settings import LaunchSettings, declared

LEAVE_ONE = "leave out the one you don't want"
CPU = ("cpu", "runs on the CPU")
GPUS = ("multi_gpu", "runs on the accelerators of torch")
TPU = ("tpu", "has torch_xla call a function on every core of a TPU")
POD = ("tpu_use_cluster", "runs on every machine of a TPU pod")
DEEPSPEED = ("use_deepspeed", "has DeepSpeed divide what is trained")
FSDP = ("use_fsdp", "has torch's FSDP divide what is trained")
MEGATRON = ("use_megatron_lm", "has Megatron-LM divide what is trained")
MPIRUN = ("mpirun_hostfile", "has mpirun start the processes")
RAY = ("launcher", "has another program place the processes")
HOSTFILE = ("deepspeed_hostfile", "has DeepSpeed's runner start the processes")
#: Flags of which a command line can have one: (flag by dest, what it implies), each pair with what to do about it.
EXCLUSIVE: tuple[tuple[tuple[str, str], tuple[str, str], str], ...] = (
    *((*pair, LEAVE_ONE) for pair in combinations((CPU, GPUS, TPU), 2)),
    *((*pair, LEAVE_ONE) for pair in ((CPU, POD), (GPUS, POD))),
    *((*pair, LEAVE_ONE) for pair in combinations((DEEPSPEED, FSDP, MEGATRON), 2)),
    *((*pair, LEAVE_ONE) for pair in combinations((MPIRUN, RAY, TPU), 2)),
    *((*pair, LEAVE_ONE) for pair in ((MPIRUN, POD), (RAY, POD), (MPIRUN, HOSTFILE), (RAY, HOSTFILE))),
    *((TPU, trainer, "on a TPU, leave out the other") for trainer in (DEEPSPEED, FSDP, MEGATRON)),
    *((POD, trainer, "on a TPU, leave out the other") for trainer in (DEEPSPEED, FSDP, MEGATRON)),
    (("module", "runs a module with `python -m`"), ("no_python", "starts a program without Python"), "leave out one"),
    (TPU, ("no_python", "starts a program without Python"), "give a Python file, and --main_training_function"),
    (POD, ("no_python", "starts a program without Python"), "give a Python file, and --main_training_function"),
    (
        ("deepspeed_inclusion_filter", "uses only some machines"),
        ("deepspeed_exclusion_filter", "leaves some machines out"),
        "say with one of them which machines to use",
    ),
)
#: What DeepSpeed's own file says of ZeRO, offloading and saving.
OF_THE_FILE = (
    "zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
    "offload_param_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
#: What it may leave to us, by saying `auto` or nothing.
SHARED_WITH_THE_FILE = ("gradient_accumulation_steps", "gradient_clipping")


def settings_agree(settings: LaunchSettings) -> None:
    """Refuse two settings that say different things.

    Raises:
        ValueError: names both.
    """
    for (first, first_means), (second, second_means), do in EXCLUSIVE:
        if is_on(settings, first) and is_on(settings, second):
            raise ValueError(
                message(
                    given=f"{settings.said(first)} and {settings.said(second)}",
                    why=f"the first {first_means}, the second {second_means}",
                    allowed="one of the two",
                    do=do,
                )
            )


def is_on(settings: LaunchSettings, dest: str) -> bool:
    """Whether something was asked for by a flag, or by the config file where that has no kind of run to say it by."""
    by_file = settings.uses_deepspeed and dest in settings.found and declared()[dest].section == SECTION
    return (settings.is_flag(dest) or by_file) and bool(settings.get(dest))


def deepspeed_file_agrees(settings: LaunchSettings) -> None:
    """Refuse DeepSpeed's own file beside settings for which it stands.

    Raises:
        ValueError: names both, or says why the file can't be one of DeepSpeed.
        FileNotFoundError: there is no such file.
    """
    named = settings.get("deepspeed_config_file")
    if named is None or not settings.uses_deepspeed:
        return
    content = content_of(str(named), "deepspeed_config_file")
    said = [dest for dest in OF_THE_FILE if dest in settings.found]
    said += [dest for dest in SHARED_WITH_THE_FILE if dest in settings.found and content.get(dest, "auto") != "auto"]
    if said:
        raise ValueError(
            message(
                given=f"{settings.said('deepspeed_config_file')} and {settings.said(said[0])}",
                why="the first has DeepSpeed set up by its own file, the second sets it up here",
                allowed="one of the two" + (f'; or "{said[0]}": "auto" in the file' if said[0] in content else ""),
                do="write it into the file of DeepSpeed, or leave that out",
            )
        )
