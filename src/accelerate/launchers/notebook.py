"""What kind of notebook this is, which devices it has, and whether processes can be started from it."""

from __future__ import annotations

import importlib.util
import sys

from accelerate.base.environ import read
from accelerate.base.messages import message
from accelerate.devices.specs import CUDA

#: Modules that touch an accelerator when they are imported.
TOUCHING = ("bitsandbytes",)


def check_no_accelerator() -> None:
    """Refuse a notebook with a state that is set up, which its processes would share."""
    states = sys.modules.get("accelerate.state.accelerator_state")
    if states is not None and states.AcceleratorState._shared_state:
        raise ValueError(
            message(
                given="a notebook that has built an Accelerator",
                why="the processes would inherit what it holds, and take themselves for that one process",
                allowed="an Accelerator that is built inside the function",
                do="restart the kernel, and move the cell that builds the Accelerator into the function",
            )
        )


def check_untouched(start_method: str) -> None:
    """Refuse what processes can't share with the notebook: a state that is set up, an accelerator in use."""
    check_no_accelerator()
    if start_method != "fork":
        return
    touched = [name for name in TOUCHING if name in sys.modules and devices()]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        touched.append("CUDA")
    if touched:
        raise ValueError(
            message(
                given=f"a notebook that has used {' and '.join(touched)}",
                why="an accelerator that was in use before processes are forked can't be used in them",
                allowed="imports of, and tensors on, the accelerator inside the function only",
                do="restart the kernel, and move what touches the accelerator into the function",
            )
        )


def hosted_notebook() -> bool:
    """Whether this is a notebook of Colab or Kaggle."""
    shell = sys.modules.get("IPython")
    inside_colab = shell is not None and "google.colab" in str(shell.get_ipython())
    return inside_colab or any(read(name) is not None for name in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"))


def has_tpu() -> bool:
    """Whether the machine has a TPU and torch_xla knows it."""
    return read("TPU_NAME") is not None and importlib.util.find_spec("torch_xla") is not None


def devices() -> int:
    """Return how many accelerators torch finds, without setting any up."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def device_name() -> str:
    """Return how to call the device that one process gets."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "the CPU" if found is None else f"one device of type {found.type}"


def must_spawn() -> bool:
    """Whether the accelerators can't be used in forked processes: XPU, and ROCm's CUDA."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and (found.type == "xpu" or (found.type == CUDA.name and torch.version.hip is not None))
