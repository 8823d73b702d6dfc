"""`accelerate tpu-config`: the call of gcloud, from flags, files and the config."""

from __future__ import annotations

import subprocess

import pytest

from accelerate.commands.tpu import tpu_command_launcher, tpu_command_parser

POD = "{distributed_type: XLA, num_processes: 8, tpu_name: mine, tpu_zone: z1, commands: [ls, 'echo a']}"
START = "Running gcloud compute tpus tpu-vm ssh"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run the command in a folder of its own, and return what it printed."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "commands").write_text("pip install x\n\necho b\n")

    def call(*flags):
        tpu_command_launcher(tpu_command_parser().parse_args(list(flags)))
        return capsys.readouterr().out.strip()

    return call


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--config_file", "pod.yaml"],
            f"{START} mine --zone z1 --command cd /usr/share; ls; echo a --worker all",
        ),
        (
            ["--config_file", "pod.yaml", "--command", "echo", "c", "--command", "ls", "--tpu_name", "other"],
            f"{START} other --zone z1 --command cd /usr/share; echo c; ls --worker all",
        ),
        (
            ["--tpu_name", "a", "--tpu_zone", "b", "--command_file", "commands", "--install_accelerate"],
            f"{START} a --zone b "
            "--command cd /usr/share; pip install accelerate -U; pip install x; echo b --worker all",
        ),
        (
            [
                "--tpu_name",
                "a",
                "--tpu_zone",
                "b",
                "--use_alpha",
                "--install_accelerate",
                "--accelerate_version",
                "1.16.0",
            ],
            "Running gcloud alpha compute tpus tpu-vm ssh a --zone b "
            "--command cd /usr/share; pip install accelerate==1.16.0 --worker all",
        ),
    ],
)
def test_the_call(run, flags, said):
    assert run("--debug", *flags) == said


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        (["--command", "ls"], ValueError, "give --tpu_name and --tpu_zone"),
        (["--tpu_name", "a", "--tpu_zone", "b"], ValueError, "no command"),
        (["--tpu_name", "a", "--tpu_zone", "b", "--command_file", "none"], FileNotFoundError, "command_file none"),
        (
            ["--tpu_name", "a", "--tpu_zone", "b", "--install_accelerate", "--accelerate_version", "dev"],
            ValueError,
            "it is no version",
        ),
    ],
)
def test_what_is_refused(run, flags, error, said):
    with pytest.raises(error, match=said):
        run("--debug", *flags)


def test_gcloud_is_run(run, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda argv, check: calls.append((argv, check)))
    assert run("--config_file", "pod.yaml") == "Done on every machine of mine."
    assert calls[0][0][-3:] == ["cd /usr/share; ls; echo a", "--worker", "all"]
    assert calls[0][1] is True


def test_gcloud_is_missing(run, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="no gcloud on the PATH"):
        run("--config_file", "pod.yaml")
