"""The room's face: lazy names, and nothing heavy behind the command line's door."""

from __future__ import annotations

import subprocess
import sys

import pytest

import accelerate.config as config


@pytest.mark.parametrize("name", config.__all__)
def test_every_name_is_there(name):
    assert getattr(config, name).__name__ == name
    assert name in dir(config)


def test_other_names_are_not_made_up():
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = config.NoSuchName


def test_the_doors_open_without_heavy_imports():
    heavy = ("torch", "numpy", "yaml", "questionary", "rich", "huggingface_hub")
    doors = ("cluster", "flags", "env", "load", "questionnaire", "profile", "ddp", "arguments")
    modules = [*(f"accelerate.config.{door}" for door in doors), "accelerate.base.packages", "accelerate.base.ports"]
    code = f"import sys, {', '.join(modules)}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
