"""A plan as a person reads it, with secrets hidden."""

from __future__ import annotations

import pytest

from accelerate.launchers.plan import LaunchPlan, hide_secrets


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train.py --hub_token abc --lr 1", "train.py --hub_token *** --lr 1"),
        ("train.py --hub-token=abc", "train.py --hub-token=***"),
        (
            "train.py --wandb_api_key abc --aws_secret_access_key x",
            "train.py --wandb_api_key *** --aws_secret_access_key ***",
        ),
        ("train.py token=abc", "train.py token=***"),
        ("train.py --token --lr 1", "train.py --token --lr 1"),  # a switch
        ("train.py --use_auth_token=true", "train.py --use_auth_token=true"),
        (
            "train.py --max_new_tokens 10 --tokenizer_name gpt2 --key=1",
            "train.py --max_new_tokens 10 --tokenizer_name gpt2 --key=1",
        ),
    ],
)
def test_secrets_are_hidden(given: str, shown: str) -> None:
    assert " ".join(hide_secrets(given.split())) == shown


def test_a_plan_of_several_machines() -> None:
    plan = LaunchPlan(
        launcher="torchrun",
        argv=("python", "-m", "torch.distributed.run", "my train.py"),
        env={"B_TOKEN": "abc", "A": "x y"},
        num_processes=8,
        num_machines=2,
        machine_rank=1,
        address="host0",
        port=29500,
        script="my train.py",
    )
    assert str(plan).splitlines() == [
        "launcher:    torchrun",
        "processes:   8 on 2 machines, of which this is number 1, meeting at host0, port 29500",
        "command:     python -m torch.distributed.run 'my train.py'",
        "environment:",
        "  A='x y'",
        "  B_TOKEN=***",
    ]
    assert plan.processes_here == 4
    assert not plan.hosts_meeting_point


def test_a_plan_of_one_process() -> None:
    assert str(LaunchPlan("single", ("python", "train.py"))).splitlines() == [
        "launcher:    single",
        "processes:   1",
        "command:     python train.py",
        "environment: nothing added",
    ]
