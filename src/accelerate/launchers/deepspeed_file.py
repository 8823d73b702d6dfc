"""The file by which DeepSpeed's runner hands variables on to other machines: `.deepspeed_env`.

DeepSpeed reads it in the home folder and in the present one, or where DS_ENV_FILE says. A launch writes one of its own,
which only its owner can read and which is gone afterwards: what the person's own file says, and what the launch adds.
Values travel through shells and command lines without being quoted there, so those that wouldn't arrive are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from accelerate.base.environ import convert_dict_to_env_variables
from accelerate.base.messages import message
from accelerate.launchers.run_folder import VARIABLE as RUN_FOLDER

DS_ENV_FILE = "DS_ENV_FILE"
USUAL_NAME = ".deepspeed_env"
#: What variables begin with that are ours to hand on when the launching process has them.
OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
#: What a shell, srun and mpirun all leave as it is; srun divides at commas.
PLAIN = re.compile(r"[\w@%+=:,./-]+")


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the library that the launching process has as variables."""
    return {name: value for name, value in environ.items() if name.startswith(OURS) and name != RUN_FOLDER}


def check_values(env: Mapping[str, str], how: str) -> None:
    """Refuse a value that wouldn't arrive on other machines as it is here.

    Raises:
        ValueError: names the variable.
    """
    for name, value in env.items():
        if PLAIN.fullmatch(value) and not (how == "slurm" and "," in value):
            continue
        raise ValueError(
            message(
                given=f"{name}={value!r} for several machines, started by {how}",
                why="the value reaches them through a command line, which would change it",
                allowed="letters, digits and @ % + = : . / - _" + ("" if how == "slurm" else " and commas"),
                do="choose another value, such as a path without blanks, or start the machines with "
                "--deepspeed_multinode_launcher standard",
            )
        )


@contextmanager
def written(env: Mapping[str, str]) -> Iterator[Path]:
    """Write the file for one launch; inside of the block it is there.

    Args:
        env: the variables that the launch adds, which win over those of the person's own file.
    """
    import tempfile

    handle, name = tempfile.mkstemp(prefix="accelerate-", suffix=USUAL_NAME)  # nobody else can read it
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines([*_own_lines(), *convert_dict_to_env_variables(env)])
        yield path
    finally:
        path.unlink(missing_ok=True)


def _own_lines() -> Iterator[str]:
    """Yield the lines of the person's own files, in the order in which DeepSpeed reads them."""
    name = os.environ.get(DS_ENV_FILE, USUAL_NAME)
    for path in dict.fromkeys((Path.home() / name, Path.cwd() / name)):
        if path.is_file():
            yield from (f"{line}\n" for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
