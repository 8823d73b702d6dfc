"""Jobs on Amazon SageMaker: a config file with `compute_environment: AMAZON_SAGEMAKER` has the script run there.

SageMaker finds machines, starts the processes on them and ends with them; here a job is asked for, and its log shown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from accelerate.base.environ import patch_environment
from accelerate.base.messages import message
from accelerate.config.flags import explicit
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.launchers.base import Launcher
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.sagemaker_job import estimator_arguments, inputs
from accelerate.launchers.settings import DECLARED, LaunchSettings

BY_SAGEMAKER = "SageMaker starts the processes, one for each GPU of its machines"
KEY_ID, SECRET_KEY = "aws_access_key_id", "aws_secret_access_key"
INPUTS = "inputs"


class SageMakerLauncher(Launcher):
    """Asks SageMaker for a job, shows its log, and returns when it has ended."""

    name = "sagemaker"
    without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "num_processes", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf",
            "same_network", "max_restarts", "log_dir", "tee", "role", "monitor_interval", "watchdog", "gpu_ids",
            "multi_gpu", "mpirun_hostfile", "main_training_function", "tpu_use_cluster", "tpu_use_sudo", "vm", "env",
        ),
        BY_SAGEMAKER,
    )  # fmt: skip

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether the config file is one of jobs on SageMaker."""
        return config.job is not None

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the job that would be asked for, with the variables for the SDK.

        Raises:
            ValueError: SageMaker can't run such a script, or the settings contradict each other.
        """
        assert config.job is not None  # `accepts` has seen it
        _check(config)
        return LaunchPlan(
            launcher=self.name,
            argv=(config.script, *config.arguments),
            env=aws_variables(config, config.job),
            request={
                **estimator_arguments(config, config.job),
                INPUTS: inputs(config.job.sagemaker_inputs_file),
            },
            num_machines=int(config.get("num_machines")),
            script=config.script,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Ask for the job, wait for its end, and return 0 or the exit code of its script.

        Raises:
            ImportError: the SDK isn't installed.
            RuntimeError: the SDK or AWS refuses the job.
        """
        from accelerate.launchers.sagemaker_sdk import submit

        request = dict(plan.request)
        channels = request.pop(INPUTS)
        with patch_environment(**plan.env):
            return submit(request, channels)

    def ignored(self, config: LaunchSettings) -> list[str]:
        """Return a sentence for each flag that was given and changes nothing, and for machines that don't meet."""
        apart = config.job is not None and config.job.distributed_type.value == "NO" and config.get("num_machines") > 1
        return [
            *super().ignored(config),
            *(["with `distributed_type: NO`, each machine runs the script by itself, and none knows another"] * apart),
        ]


def _check(config: LaunchSettings) -> None:
    """Refuse what contradicts a job on SageMaker."""
    for dest in ("module", "no_python", "submit", "launcher"):
        if config.get(dest):
            raise ValueError(
                message(
                    given=f"{config.said(dest)} and `compute_environment: AMAZON_SAGEMAKER` in {config.file}",
                    why="a job on SageMaker is a Python file that SageMaker starts",
                    allowed="one of the two",
                    do=f"leave out {config.said(dest)}, or name another config file with --config_file",
                )
            )
    if not config.script.endswith(".py"):
        raise ValueError(
            message(
                given=f"script {config.script}",
                why="SageMaker starts Python files, which it knows by their ending",
                allowed="a file whose name ends in .py",
                do="rename the script, or start it from one that does",
            )
        )


def aws_variables(config: LaunchSettings, job: SageMakerConfig) -> dict[str, str]:
    """Return what tells the SDK of AWS the region and where the credentials are: flags before the profile of the file.

    Raises:
        ValueError: one half of the credentials is missing.
    """
    given = [dest for dest in (KEY_ID, SECRET_KEY) if config.get(dest)]
    if len(given) == 1:
        raise ValueError(
            message(
                given=f"--{given[0]} alone",
                why="credentials are a pair",
                allowed=f"--{KEY_ID} with --{SECRET_KEY}, or neither",
                do="add the other; safer than flags, which other users of this machine can see, is a profile in ~/.aws",
            )
        )
    region = {"AWS_DEFAULT_REGION": job.region}
    if given:
        return {**region, **{dest.upper(): config.get(dest) for dest in given}}
    return {**region, "AWS_PROFILE": job.profile} if job.profile else region


def prepare_sagemager_args_inputs(
    sagemaker_config: SageMakerConfig, args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the arguments of SageMaker's Hugging Face estimator and the inputs of its job.

    The region and the credentials are put into the environment, where the SDK looks for them.

    Args:
        sagemaker_config: what the config file says.
        args: the parsed command line of a launch.

    Raises:
        ValueError: SageMaker can't run such a script, or the settings contradict each other.
    """
    plan = SageMakerLauncher().plan(_settings(sagemaker_config, args))
    os.environ.update(plan.env)
    request = dict(plan.request)
    channels = request.pop(INPUTS)
    return request, channels


def sagemaker_launcher(sagemaker_config: SageMakerConfig, args: argparse.Namespace) -> None:
    """Run a script as a job on SageMaker, and return when it has ended well.

    Args:
        sagemaker_config: what the config file says.
        args: the parsed command line of a launch.

    Raises:
        ImportError: the SDK isn't installed.
        RuntimeError: the job is refused, or fails.
    """
    launcher = SageMakerLauncher()
    plan = launcher.plan(_settings(sagemaker_config, args))
    code = launcher.run(plan)
    if code:
        raise RuntimeError(
            message(
                given=f"{plan.script} as a job on SageMaker",
                why=f"it ended with exit code {code}",
                allowed="a script that ends well",
                do="read the log above, or that of the job in CloudWatch",
            )
        )


def _settings(job: SageMakerConfig, args: argparse.Namespace) -> LaunchSettings:
    """Return the settings of a launch that these two describe."""
    return LaunchSettings.of(
        args.training_script, tuple(args.training_script_args), explicit(args, *DECLARED), job, file=args.config_file
    )
