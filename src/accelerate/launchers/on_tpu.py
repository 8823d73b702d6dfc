"""What `accelerate launch --tpu` starts: it has torch_xla call the main function of a script on every core.

torch_xla starts the processes and knows their number; the script is loaded in each of them, since whoever touches a TPU
before that keeps it from them::

    python -m accelerate.launchers.on_tpu --function main train.py --epochs 3
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from accelerate.base.environ import patch_environment
from accelerate.base.messages import did_you_mean, message
from accelerate.devices.specs import XLA
from accelerate.launchers.prepared import PrepareForLaunch


@dataclass(frozen=True)
class Script:
    """A function of a script, which is loaded where the function is called.

    Args:
        path: of the script, or the name of a module.
        is_module: which of the two.
        function: its name.
        arguments: what the script finds in `sys.argv`.
    """

    path: str
    is_module: bool
    function: str
    arguments: tuple[str, ...] = ()

    def __call__(self, index: int) -> None:
        """Load the script and call its function, as process `index` of torch_xla."""
        PrepareForLaunch(self._main(), XLA.label)(index)

    def _main(self) -> Callable[[], Any]:
        """Return the function."""
        module = self._load()
        found = getattr(module, self.function, None)
        if callable(found):
            return found
        there = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(
            message(
                given=f"--main_training_function {self.function} of {self.path}",
                why="the script has no such function",
                allowed="the name of a function without arguments, which every process calls",
                do=did_you_mean(self.function, there) if there else "put what trains into a function",
            )
        )

    def _load(self) -> ModuleType:
        """Execute the script under its own name, so that nothing under `if __name__ == "__main__"` runs."""
        if self.is_module:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(self.path)
            sys.argv = [str(module.__file__), *self.arguments]
            return module
        path = Path(self.path).resolve()
        sys.path.insert(0, str(path.parent))
        sys.argv = [self.path, *self.arguments]
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None  # noqa: PT018  (a file has both)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True)
class Counted:
    """A call in a process of torch_xla, once it is known that there are as many as somebody said.

    Args:
        call: what to call, with the index of the process first.
        processes: their number; None if nobody said one.
    """

    call: Callable[..., None]
    processes: int | None

    def __call__(self, index: int, *args: Any) -> None:
        """Call it as process `index`."""
        import torch_xla.runtime

        there = torch_xla.runtime.world_size()
        if self.processes not in (None, there):
            raise ValueError(
                message(
                    given=f"{self.processes} processes on a TPU that gives {there}",
                    why="torch_xla starts one for each core, or one alone",
                    allowed=f"{there}, 1, or no number",
                    do="leave the number out",
                )
            )
        self.call(index, *args)


def call_on_every_core(
    call: Callable[..., None],
    args: tuple[Any, ...] = (),
    processes: int | None = None,
    mixed_precision: str | None = None,
    start_method: str = "fork",
) -> None:
    """Have torch_xla call `call(index, *args)` in a process for each core of the TPU, or in one.

    Args:
        call: what to call; with "spawn" it has to be picklable.
        args: what follows the index.
        processes: how many processes there have to be; 1 is this process.
        mixed_precision: for an `Accelerator` that isn't told otherwise.
        start_method: "fork", which sees what a notebook has defined, or "spawn".
    """
    import torch_xla

    env = {} if mixed_precision is None else {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    with patch_environment(**env):
        torch_xla.launch(
            Counted(call, processes), args=args, start_method=start_method, debug_single_process=processes == 1
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Call a function of a script on every core."""
    parser = argparse.ArgumentParser("python -m accelerate.launchers.on_tpu", allow_abbrev=False, description=__doc__)
    parser.add_argument("--function", default="main", help="The function that every process calls.")
    parser.add_argument("--processes", type=int, default=None, help="How many processes there have to be.")
    parser.add_argument("--module", action="store_true", help="The script is the name of a module.")
    parser.add_argument("script", help="The script.")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="What it is passed.")
    args = parser.parse_args(argv)
    script = Script(args.script, args.module, args.function, tuple(args.arguments))
    call_on_every_core(script, processes=args.processes, start_method="spawn")


if __name__ == "__main__":
    # Under its own name, so that processes which are spawned find what they are to call.
    importlib.import_module("accelerate.launchers.on_tpu").main()
