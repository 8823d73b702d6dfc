"""A script on every core: loaded where its function is called, with its arguments, by a stand-in for torch_xla."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: As torch_xla's own: a pool of processes that are spawned, to which the function travels.
STAND_IN = """
import concurrent.futures
import multiprocessing
import os

from torch_xla import runtime

CORES = 2

def _start(cores, index, function, args):
    os.environ["CORES"] = str(cores)
    function(index, *args)

def launch(function, args=(), start_method="spawn", debug_single_process=False):
    if debug_single_process:
        os.environ["CORES"] = "1"
        return function(0, *args)
    pool = concurrent.futures.ProcessPoolExecutor(CORES, multiprocessing.get_context(start_method))
    with pool as executor:
        list(executor.map(_start, [CORES] * CORES, range(CORES), [function] * CORES, [args] * CORES))
"""
SCRIPT = """
import os
import sys

from beside import WORD

def train():
    from accelerate.base.environ import read
    line = f"{WORD} {__name__} {sys.argv} {read('FORK_LAUNCHED')}\\n"
    with open("seen", "a") as file:
        file.write(line)

if __name__ == "__main__":
    raise RuntimeError("the script itself is not run")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "library" / "torch_xla"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "runtime.py").write_text("import os\n\ndef world_size():\n    return int(os.environ['CORES'])\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "my-train.py").write_text(SCRIPT)
    (scripts / "module.py").write_text(SCRIPT)
    (scripts / "beside.py").write_text("WORD = 'beside'\n")
    return tmp_path


def run(folder: Path, *words: str, cwd: str = ".") -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(folder / "library"), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "accelerate.launchers.on_tpu", *words]
    done = subprocess.run(argv, cwd=folder / cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_every_core_calls_the_function(folder: Path) -> None:
    code, said = run(folder, "--function", "train", "scripts/my-train.py", "--lr", "1")
    assert code == 0, said
    assert (folder / "seen").read_text() == "beside my-train ['scripts/my-train.py', '--lr', '1'] 1\n" * 2


def test_one_core_and_a_module(folder: Path) -> None:
    code, said = run(folder, "--function", "train", "--processes", "1", "--module", "module", "x", cwd="scripts")
    assert code == 0, said
    seen = (folder / "scripts" / "seen").read_text()
    assert seen == f"beside module ['{folder / 'scripts' / 'module.py'}', 'x'] 1\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--function", "trian"], ["--main_training_function trian", "no such function", "Did you mean 'train'?"]),
        (["--function", "train", "--processes", "8"], ["8 processes on a TPU that gives 2", "leave the number out"]),
    ],
)
def test_is_refused(folder: Path, words: list[str], parts: list[str]) -> None:
    code, said = run(folder, *words, "scripts/my-train.py")
    assert code == 1
    assert [part for part in parts if part not in said] == []
    assert not (folder / "seen").exists()
