"""A job on Amazon SageMaker as a value, in the words of the Hugging Face estimator of its SDK.

Everything is read off the settings of a launch: nothing is asked of AWS, and the SDK isn't needed. What the SDKs make
of it is in `accelerate.launchers.sagemaker_sdk`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate.base.messages import message
from accelerate.config.enums import SageMakerDistributedType
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.launchers.environment import said_environment
from accelerate.launchers.settings import LaunchSettings

USE_SAGEMAKER = "ACCELERATE_USE_SAGEMAKER"
DISTRIBUTED = "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"
#: How the estimator is told to distribute a job.
DISTRIBUTIONS: dict[SageMakerDistributedType, dict[str, Any] | None] = {
    SageMakerDistributedType.NO: None,
    SageMakerDistributedType.DATA_PARALLEL: {"smdistributed": {"dataparallel": {"enabled": True}}},
    SageMakerDistributedType.MODEL_PARALLEL: {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {}}},
        "mpi": {"enabled": True},
    },
}
#: Arguments of the estimator that are merged when the config file has more of them, rather than replaced.
MERGED = ("environment", "hyperparameters")


def estimator_arguments(settings: LaunchSettings, job: SageMakerConfig) -> dict[str, Any]:
    """Return the arguments of the estimator; those in `additional_args` of the config file come last, and win.

    Raises:
        ValueError: the script isn't a Python file, or its arguments can't be hyperparameters.
    """
    script = Path(settings.script)
    arguments: dict[str, Any] = {
        "image_uri": job.image_uri,
        "entry_point": script.name,
        "source_dir": str(script.parent),
        "role": job.iam_role_name,
        "transformers_version": job.transformers_version,
        "pytorch_version": job.pytorch_version,
        "py_version": job.py_version,
        "base_job_name": job.base_job_name,
        "instance_count": int(settings.get("num_machines")),
        "instance_type": job.ec2_instance_type,
        "debugger_hook_config": False,
        "distribution": DISTRIBUTIONS[job.distributed_type],
        "hyperparameters": hyperparameters(settings.arguments),
        "environment": {
            **said_environment(settings),
            USE_SAGEMAKER: "true",
            DISTRIBUTED: job.distributed_type.value,
        },
        "metric_definitions": metrics(job.sagemaker_metrics_file),
    }
    for name, value in (job.additional_args or {}).items():
        arguments[name] = {**arguments[name], **value} if name in MERGED else value
    return arguments


def hyperparameters(nargs: Sequence[str]) -> dict[str, Any]:
    """Return the words after a script as hyperparameters, which SageMaker hands on as `--name value`.

    Raises:
        ValueError: a word has no name, or a name no value, or two.
    """
    found: dict[str, Any] = {}
    for flag, value in _pairs(nargs):
        name = flag.lstrip("-")
        if name in found:
            raise _refused(flag, "it is given twice, and a hyperparameter has one value", "give it once")
        found[name] = typed(value)
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the flags among `words`, each with its value."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            raise _refused(word, "it has no name", "give the script a flag for it, as `--name value`")
        flag, equals, value = word.partition("=")
        if not equals and (not rest or _is_flag(rest[0])):
            raise _refused(flag, "it has no value", f"let the script read a value, and write `{flag} True`")
        yield flag, value if equals else rest.pop(0)


def _is_flag(word: str) -> bool:
    """Whether a word is a flag, rather than a value such as -1."""
    with suppress(ValueError):
        float(word)
        return False
    return word.startswith("-") and word.strip("-") != ""


def _refused(word: str, why: str, do: str) -> ValueError:
    """Return the error for a word that can't become a hyperparameter."""
    return ValueError(
        message(
            given=f"argument {word} of the script",
            why=f"{why}, and SageMaker hands arguments on as hyperparameters",
            allowed="flags with one value each: `--lr 1e-4 --epochs 3`",
            do=do,
        )
    )


def typed(text: str) -> Any:
    """Return a value as the number or truth value that it is, if no character is lost by that: `1.10` stays text."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            if repr(number) == text or ("e" in text.lower() and "_" not in text):
                return number if math.isfinite(number) else text
    return text


def inputs(path: str | None) -> dict[str, str] | None:
    """Return the channels of a job and where their data lie, as the file lists them; None without a file."""
    return dict(table(path, "sagemaker_inputs_file", "channel, location")) if path else None


def metrics(path: str | None) -> list[dict[str, str]] | None:
    """Return the metrics that are looked for in the log of a job, as the file lists them; None without a file."""
    if not path:
        return None
    rows = table(path, "sagemaker_metrics_file", "name, pattern")
    return [{"Name": name, "Regex": pattern} for name, pattern in rows]


def table(path: str, key: str, columns: str) -> list[tuple[str, str]]:
    """Return the rows of a file that has a header line, and two columns with a tab between.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line has another number of columns.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            message(
                given=f"`{key}: {path}` in the config file",
                why="there is no such file",
                allowed=f"a file with a header line, and the columns {columns}",
                do="correct the path, which is seen from the folder of the launch",
            )
        )
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [_row(line, number, path, columns) for number, line in enumerate(lines, 1) if number > 1 and line.strip()]


def _row(line: str, number: int, path: str, columns: str) -> tuple[str, str]:
    """Return the two columns of a line."""
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 2 or not all(cells):
        raise ValueError(
            message(
                given=f"line {number} of {path}: {line}",
                why=f"it has {len(cells)} column{'s' if len(cells) != 1 else ''}",
                allowed=f"two, with one tab between: {columns}",
                do="correct the line; spaces don't separate columns",
            )
        )
    return cells[0], cells[1]
