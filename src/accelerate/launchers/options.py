"""The settings that only a launch has: how the script is started and how its processes are watched.

They are flags without a key in the config file, and nothing of them reaches the library in the started processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.kinds import Choice, Integer, Number, Text
from accelerate.config.option import Boolean, option

SCRIPT = "How the script is started"
WATCH = "How processes are watched"


@dataclass(frozen=True)
class LaunchOptions:
    """The flags of `accelerate launch` beside those that a config file can hold."""

    module: bool = option(
        False,
        kind=Boolean(),
        flag="--module",
        aliases=("-m",),
        group=SCRIPT,
        help="The script is the name of a module, run as `python -m` does.",
    )
    no_python: bool = option(
        False,
        kind=Boolean(),
        flag="--no_python",
        group=SCRIPT,
        help="The script is a program of its own, started without Python before it.",
    )
    dry_run: bool = option(
        False,
        kind=Boolean(),
        flag="--dry_run",
        group=SCRIPT,
        help="Print the command and the environment, and start nothing.",
    )
    quiet: bool = option(
        False,
        kind=Boolean(),
        flag="--quiet",
        aliases=("-q",),
        group=SCRIPT,
        help="Say nothing about defaults; a failure of the script ends in its exit code, without an exception.",
    )
    launcher: str | None = option(
        None,
        kind=Choice(("ray",)),
        flag="--launcher",
        group=SCRIPT,
        help="Have this start the processes, rather than what fits the other settings.",
    )
    submit: str | None = option(
        None,
        kind=Choice(("slurm",)),
        flag="--submit",
        group=SCRIPT,
        help="Submit the run to this batch system, and return. --dry_run shows the batch script.",
    )
    submit_args: str | None = option(
        None,
        kind=Text(),
        flag="--submit_args",
        group=SCRIPT,
        help="What else to ask of the batch system: '--partition=gpu --time=1:00:00'.",
    )
    multi_gpu: bool = option(
        False,
        kind=Boolean(),
        flag="--multi_gpu",
        group="Hardware Selection Arguments",
        help="Run one process on each accelerator.",
    )
    tpu: bool = option(
        False,
        kind=Boolean(),
        flag="--tpu",
        group="Hardware Selection Arguments",
        help="Run on a TPU: torch_xla starts --main_training_function on every core.",
    )
    use_deepspeed: bool = option(
        False,
        kind=Boolean(),
        flag="--use_deepspeed",
        env="ACCELERATE_USE_DEEPSPEED",
        group="Training Paradigm Arguments",
        help="Train with DeepSpeed, on any device.",
    )
    use_fsdp: bool = option(
        False,
        kind=Boolean(),
        flag="--use_fsdp",
        env="ACCELERATE_USE_FSDP",
        group="Training Paradigm Arguments",
        help="Shard parameters, gradients and optimizer states over the processes (FSDP), on any device.",
    )
    use_megatron_lm: bool = option(
        False,
        kind=Boolean(),
        flag="--use_megatron_lm",
        env="ACCELERATE_USE_MEGATRON_LM",
        group="Training Paradigm Arguments",
        help="Train with Megatron-LM; no launcher of this version does.",
    )
    use_parallelism_config: bool = option(
        False,
        kind=Boolean(),
        flag="--use_parallelism_config",
        env="ACCELERATE_USE_PARALLELISM_CONFIG",
        group="Training Paradigm Arguments",
        help="Lay processes out as --parallelism_config_* says; implied when one of these is given.",
    )
    num_cpu_threads_per_process: int | None = option(
        None,
        kind=Integer(1),
        flag="--num_cpu_threads_per_process",
        group="Resource Selection Arguments",
        env="OMP_NUM_THREADS",
        help="How many CPU threads each process may use (OMP_NUM_THREADS).",
    )
    tee: str = option(
        "0",
        kind=Text(),
        flag="--tee",
        aliases=("-t",),
        group=WATCH,
        help="Write output to the console and --log_dir: 1 stdout, 2 stderr, 3 both; `0:1,1:3` goes by local rank.",
    )
    log_dir: str | None = option(
        None, kind=Text(), flag="--log_dir", group=WATCH, help="The folder for the output of each process."
    )
    role: str = option("default", kind=Text(), flag="--role", group=WATCH, help="A name for the processes in messages.")
    rdzv_conf: str = option(
        "",
        kind=Text(),
        flag="--rdzv_conf",
        group="Distributed GPUs",
        help="More settings of the rendezvous: key=value,key=value.",
    )
    max_restarts: int = option(
        0,
        kind=Integer(0),
        flag="--max_restarts",
        group=WATCH,
        help="How often to start all processes again after one has failed.",
    )
    watchdog: float = option(
        0.0,
        kind=Number(0.0),
        flag="--watchdog",
        env="ACCELERATE_WATCHDOG",
        group=WATCH,
        help="Print where each process stands once none has moved for this many seconds; 0 doesn't look.",
    )
    monitor_interval: float = option(
        0.1,
        kind=Number(0.0),
        flag="--monitor_interval",
        group=WATCH,
        help="Seconds between two looks at the processes.",
    )
    aws_access_key_id: str | None = option(
        None,
        kind=Text(),
        flag="--aws_access_key_id",
        group="Amazon SageMaker",
        help="The AWS credentials of a job, where neither a profile nor the environment has them.",
    )
    aws_secret_access_key: str | None = option(
        None,
        kind=Text(),
        flag="--aws_secret_access_key",
        group="Amazon SageMaker",
        help="The secret half of these credentials; other users of this machine can read it while the launch runs.",
    )
