"""Asking SageMaker for a job with the SDK that is installed: version 2 has the estimator, version 3 has trainers.

What is asked for is in the words of the estimator (`accelerate.launchers.sagemaker_job`); for version 3 it is put into
those of its trainer by `accelerate.launchers.sagemaker_trainer`. The SDK is imported when a job is asked for, and not
before.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from accelerate.base.messages import message
from accelerate.launchers.console import say

EXIT_CODE = re.compile(r"ExitCode:?\s+(\d+)")


class Started(NamedTuple):
    """A job that was asked for: its name, the SDK's own object for it, and the errors by which its failure is told."""

    name: str
    job: Any
    failures: tuple[type[Exception], ...]


def submit(arguments: Mapping[str, Any], channels: Mapping[str, str] | None) -> int:
    """Ask for a job, show its log, and return 0 when it has ended well, or the exit code of its script.

    Args:
        arguments: those of the estimator.
        channels: name and place of its inputs.

    Raises:
        ImportError: the SDK isn't installed.
        ValueError: the SDK has no word for an argument.
        RuntimeError: the SDK or AWS refuses the job.
    """
    version = sdk_version()
    with _refusals(arguments):
        started = (with_estimator if version == 2 else with_trainer)(arguments, channels)
    say(f"asked SageMaker for job {started.name}; its log follows")
    try:
        started.job.wait(logs=True)
    except KeyboardInterrupt:
        stop = f"aws sagemaker stop-training-job --training-job-name {started.name}"
        say(f"job {started.name} goes on; `{stop}` stops it")
        raise
    except started.failures as error:
        say(f"job {started.name} failed: {error}")
        code = EXIT_CODE.search(str(error))
        return int(code.group(1)) if code else 1
    return 0


def sdk_version() -> int:
    """Return the major version of the SDK, 2 or 3.

    Raises:
        ImportError: it isn't installed, or is of another version.
    """
    version = None
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("sagemaker")
    major = int(version.partition(".")[0]) if version else 0
    if major in (2, 3):
        return major
    raise ImportError(
        message(
            given="`compute_environment: AMAZON_SAGEMAKER` in the config file",
            why=f"version {version} of the package sagemaker isn't known" if version else "sagemaker isn't installed",
            allowed="sagemaker 2 or 3",
            do="pip install 'accelerate[sagemaker]'; --dry_run shows what would be asked for without it",
        )
    )


@contextmanager
def _refusals(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Tell in our own form what the SDK or AWS says against a job."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, RuntimeError, ValueError) as error:
        if str(error).startswith("Given: "):
            raise
        raise RuntimeError(
            message(
                given=f"a job of {arguments['entry_point']} on {arguments['instance_count']} "
                f"{arguments['instance_type']}, as role {arguments['role']}",
                why=f"{type(error).__name__}: {error}",
                allowed="what the account, the role and the image can do",
                do="correct the config file; --dry_run shows what is asked for",
            )
        ) from error


def with_estimator(arguments: Mapping[str, Any], channels: Mapping[str, str] | None) -> Started:
    """Ask for a job with version 2 of the SDK."""
    from sagemaker.exceptions import UnexpectedStatusException
    from sagemaker.huggingface import HuggingFace

    estimator = HuggingFace(**arguments)
    estimator.fit(inputs=channels, wait=False)
    return Started(estimator.latest_training_job.name, _Estimated(estimator), (UnexpectedStatusException,))


class _Estimated:
    """A job of version 2 of the SDK, which waits as one of version 3 does."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def wait(self, logs: bool) -> None:
        """Wait for the end of the job."""
        self.estimator.latest_training_job.wait(logs="All" if logs else "None")


def with_trainer(arguments: Mapping[str, Any], channels: Mapping[str, str] | None) -> Started:
    """Ask for a job with version 3 of the SDK."""
    from sagemaker.core.utils.exceptions import FailedStatusError

    from accelerate.launchers.sagemaker_trainer import train

    job = train(arguments, channels)
    return Started(job.training_job_name, job, (FailedStatusError,))
