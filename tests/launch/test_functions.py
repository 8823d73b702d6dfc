"""Functions really run on several processes: from a script, and from a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 120
TRAIN = """
import torch

warm = torch.randn(300, 300) @ torch.randn(300, 300)  # so that threads exist before processes are forked


def train(word, fail_on=None):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if accelerator.process_index == fail_on:
        raise KeyError("the one that matters")
    ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
    again = torch.randn(300, 300) @ torch.randn(300, 300)
    accelerator.print(word, ranks, accelerator.mixed_precision, tuple(again.shape))
    accelerator.wait_for_everyone()
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    (folder / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_functions_run_on_several_processes(tmp_path):
    done = run(
        TRAIN
        + """
if __name__ == "__main__":
    from accelerate import debug_launcher, notebook_launcher

    debug_launcher(train, ("debug",), num_processes=3)
    notebook_launcher(train, ("notebook",), num_processes=2, mixed_precision="bf16")
    debug_launcher(train, ("again",))
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "debug [0, 1, 2] no (300, 300)",
        "notebook [0, 1] bf16 (300, 300)",
        "again [0, 1] no (300, 300)",
    ]


def test_the_failure_that_came_first_is_told(tmp_path):
    done = run(
        TRAIN
        + """
if __name__ == "__main__":
    from accelerate import notebook_launcher

    try:
        notebook_launcher(train, ("notebook", 1), num_processes=2)
    except RuntimeError as error:
        print(error)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "`train` failed on 2 processes: rank 1 raised KeyError"
    assert lines[-1] == "KeyError: 'the one that matters'"


def test_a_notebook_trains_on_two_processes(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="notebooks are executed where nbclient is installed")
    nbclient = pytest.importorskip("nbclient", reason="notebooks are executed where nbclient is installed")
    pytest.importorskip("ipykernel", reason="notebooks are executed where a kernel is installed")
    cells = [TRAIN, "from accelerate import notebook_launcher\nnotebook_launcher(train, ('cell',), num_processes=2)"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(book, timeout=LIMIT, resources={"metadata": {"path": str(tmp_path)}}).execute()
    written = "".join(output.get("text", "") for cell in book.cells for output in cell.outputs)
    assert "cell [0, 1] no (300, 300)" in written


def test_a_process_that_is_killed_is_told_by_its_signal(tmp_path):
    done = run(
        """
import os
import signal


def train():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from accelerate import notebook_launcher

    try:
        notebook_launcher(train, num_processes=2)
    except RuntimeError as error:
        print(error)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["`train` failed on 2 processes: rank 1 ended with signal 9"]
