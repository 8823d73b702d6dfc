"""Installing torch_xla where the machine is borrowed: in a notebook of Colab."""

from __future__ import annotations

import subprocess
import sys

from accelerate.base.messages import message
from accelerate.launchers.notebook import hosted_notebook

__all__ = ["install_xla"]


def install_xla(upgrade: bool = False) -> None:
    """Install the torch_xla that was made for the torch of a hosted notebook.

    Args:
        upgrade: install it although one is there.

    Raises:
        RuntimeError: this is no notebook of Colab or Kaggle.
        subprocess.CalledProcessError: pip failed.
    """
    if not hosted_notebook():
        raise RuntimeError(
            message(
                given="install_xla()",
                why="this is no notebook of Colab or Kaggle, whose packages may be changed from within",
                allowed="pip, in an environment of your own",
                do="pip install 'torch_xla[tpu]', of the same version as torch",
            )
        )
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    again = ["--upgrade"] if upgrade else []
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *again, f"torch_xla[tpu]~={release}.0"], check=True, timeout=1800
    )
