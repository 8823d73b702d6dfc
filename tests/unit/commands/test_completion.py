"""Shell completion: what bash really completes, and what fish is told."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from accelerate.commands.accelerate_cli import COMMANDS
from accelerate.commands.completion import SHELLS, bash, completion_command, completion_command_parser, fish


def complete(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    typed = " ".join(f"'{word}'" for word in ("accelerate", *words))
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _accelerate; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
def test_bash_completes_commands_flags_choices_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    script = bash()
    assert complete(script, "") == list(COMMANDS)
    assert complete(script, "la") == ["launch"]
    assert "--num_processes" in complete(script, "launch", "--num")
    assert complete(script, "launch", "--mixed_precision", "") == ["no", "fp16", "bf16", "fp8"]
    assert complete(script, "launch", "tr") == ["train.py"]
    assert complete(script, "env", "--j") == ["--json"]


def test_fish_is_told_what_each_flag_means():
    lines = fish().splitlines()
    assert (
        "complete -c accelerate -n __fish_use_subcommand -f -a env -d 'print the facts that a bug report needs'"
        in lines
    )
    (one,) = [line for line in lines if "from launch" in line and "-l mixed_precision " in line]
    assert "-x -a 'no fp16 bf16 fp8' -d 'Compute in this number format" in one


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_every_shell_gets_every_command(shell, capsys):
    completion_command(completion_command_parser().parse_args([shell]))
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in out] == []
