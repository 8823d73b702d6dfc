"""torch_xla is installed in borrowed notebooks, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from accelerate.utils import install_xla


def test_elsewhere_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    with pytest.raises(RuntimeError, match=r"no notebook of Colab(.|\n)*pip install 'torch_xla\[tpu\]'"):
        install_xla()


@pytest.mark.parametrize(("upgrade", "flags"), [(False, []), (True, ["--upgrade"])])
def test_the_one_for_this_torch(monkeypatch: pytest.MonkeyPatch, upgrade: bool, flags: list[str]) -> None:
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    calls: list[list[str]] = []

    def run(argv: list[str], **facts: Any) -> None:
        calls.append(argv)

    monkeypatch.setattr(subprocess, "run", run)
    install_xla(upgrade)
    assert calls == [[sys.executable, "-m", "pip", "install", *flags, "torch_xla[tpu]~=2.9.0"]]
