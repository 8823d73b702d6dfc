"""What can't be launched with DeepSpeed is refused before anything starts: hostfiles, filters, numbers, its file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from accelerate.launchers import deepspeed
from tests.launch.plans import FOUR_GPUS, plan_of

HOSTFILE = "--use_deepspeed --deepspeed_hostfile hosts"
MANY = "--use_deepspeed --num_machines 2 --main_process_ip h0 --main_process_port 7777"


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("hosts")
    path.write_text("node1 slots=4\nnode2 slots=4\n")
    return path


REFUSED: dict[str, tuple[str, str, list[str]]] = {
    "a bad line": (f"{HOSTFILE} SCRIPT", "node1 slots=2\nnode2:2\n", ["line 2 of hosts: node2:2", "`node1 slots=4`"]),
    "blanks": (f"{HOSTFILE} SCRIPT", "\nnode1 slots = 2\n", ["line 2 of hosts", "without blanks"]),
    "a machine twice": (f"{HOSTFILE} SCRIPT", "a slots=2\na slots=1\n", ["line 2 of hosts: a slots=1", "line already"]),
    "no machine": (f"{HOSTFILE} SCRIPT", "# none\n", ["no line with a machine"]),
    "no hostfile": (f"{MANY} SCRIPT", "", ["2 machines started by pdsh, and no hostfile", "launcher standard"]),
    "an unknown machine": (
        f"{HOSTFILE} --deepspeed_inclusion_filter nod1 SCRIPT",
        "node1 slots=2\nb slots=2",
        ["the filter nod1", "no machine 'nod1'", "Did you mean 'node1'?"],
    ),
    "an unknown slot": (
        f"{HOSTFILE} --deepspeed_exclusion_filter a:0,2 SCRIPT",
        "a slots=2\n",
        ["the filter a:0,2", "a has no slot 2", "0 to 1"],
    ),
    "a bad filter": (f"{HOSTFILE} --deepspeed_exclusion_filter a:x SCRIPT", "a slots=2\n", ["'a:x' names no machine"]),
    "nothing left": (f"{HOSTFILE} --deepspeed_exclusion_filter a SCRIPT", "a slots=2\n", ["leaves no machine"]),
    "both filters": (
        f"{HOSTFILE} --deepspeed_exclusion_filter a --deepspeed_inclusion_filter b SCRIPT",
        "a slots=2\nb slots=2\n",
        ["--deepspeed_inclusion_filter b and --deepspeed_exclusion_filter a", "one of the two"],
    ),
    "another number of machines": (
        f"{HOSTFILE} --num_machines 3 SCRIPT",
        "a slots=2\nb slots=2\n",
        ["--num_machines 3, and 2 machines chosen from hosts", "--num_machines 2"],
    ),
    "too many processes": (
        f"{HOSTFILE} --num_processes 6 SCRIPT",
        "a slots=4\nb slots=1\n",
        ["--num_processes 6", "5 slots", "leave the number out"],
    ),
    "a number beside a filter": (
        f"{HOSTFILE} --num_processes 1 --deepspeed_inclusion_filter a SCRIPT",
        "a slots=4\nb slots=1\n",
        ["--num_processes 1", "the filter chooses 4"],
    ),
    "a filter for MPI": (
        f"{HOSTFILE} --deepspeed_multinode_launcher openmpi --deepspeed_inclusion_filter a SCRIPT",
        "a slots=4\nb slots=1\n",
        ["launcher openmpi and --include a", "one process for each slot", "launcher pdsh"],
    ),
    "a number for MPI": (
        f"{HOSTFILE} --deepspeed_multinode_launcher openmpi --num_processes 2 SCRIPT",
        "a slots=4\nb slots=4\n",
        ["launcher openmpi and --num_gpus 1"],
    ),
    "uneven machines for MPICH": (
        f"{HOSTFILE} --deepspeed_multinode_launcher mpich SCRIPT",
        "a slots=4\nb slots=1\n",
        ["launcher mpich and machines with 1 and 4 slots"],
    ),
    "slots for SLURM": (
        f"{HOSTFILE} --deepspeed_multinode_launcher slurm --deepspeed_inclusion_filter a:1 SCRIPT",
        "a slots=4\n",
        ["launcher slurm and --include a:1", "slots of its own choice"],
    ),
    "nossh without an address": (
        f"{HOSTFILE} --deepspeed_multinode_launcher nossh SCRIPT",
        "a slots=4\n",
        ["nossh and no main_process_ip", "--machine_rank"],
    ),
    "a rank that isn't one": (
        f"{HOSTFILE} --deepspeed_multinode_launcher nossh --main_process_ip a --machine_rank 1 SCRIPT",
        "a slots=4\n",
        ["machine_rank 1 of 1 machine", "order of the hostfile"],
    ),
    "any port": (f"{HOSTFILE} --main_process_port 0 SCRIPT", "a slots=4\n", ["port 0 for several machines"]),
    "a value that wouldn't arrive": (
        f"{HOSTFILE} --deepspeed_moe_layer_cls_names A$B SCRIPT",
        "a slots=4\n",
        ["ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES='A$B'", "started by pdsh", "choose another value"],
    ),
    "commas for SLURM": (
        f"{HOSTFILE} --deepspeed_multinode_launcher slurm --deepspeed_moe_layer_cls_names A,B SCRIPT",
        "a slots=4\n",
        ["='A,B'", "started by slurm"],
    ),
    "DeepSpeed and FSDP": ("--use_deepspeed --use_fsdp SCRIPT", "", ["--use_deepspeed and --use_fsdp", "one of"]),
    "a file and ZeRO": (
        "--use_deepspeed --deepspeed_config_file ds.json --zero_stage 3 SCRIPT",
        "",
        ["--deepspeed_config_file ds.json and --zero_stage 3", "by its own file"],
    ),
    "a file and a number that it has": (
        "--use_deepspeed --deepspeed_config_file ds.json --gradient_accumulation_steps 2 SCRIPT",
        "",
        ["ds.json and --gradient_accumulation_steps 2", '"gradient_accumulation_steps": "auto"'],
    ),
    "no JSON": ("--use_deepspeed --deepspeed_config_file hosts SCRIPT", "a slots=1", ["file hosts", "JSON"]),
    "no object": ("--use_deepspeed --deepspeed_config_file list.json SCRIPT", "", ["it holds a list"]),
}  # fmt: skip


@pytest.mark.parametrize(("line", "content", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(line: str, content: str, parts: list[str], hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "USUAL_HOSTFILE", Path("nowhere"))
    hosts.write_text(content)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}')
    Path("list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"(?s)^Given: .*\nWhy not: .*\nAllowed: .*\nWhat to do: ") as refused:
        plan_of(line)
    assert [part for part in parts if part not in str(refused.value)] == []


def test_a_file_by_config_and_a_field_by_config_are_named_by_their_lines() -> None:
    Path("ds.json").write_text("{}")
    config = "{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}}"
    with pytest.raises(ValueError, match=r"deepspeed_config_file: ds.json` in c.yaml and `.*zero_stage: 3`"):
        plan_of("SCRIPT", config, FOUR_GPUS)


@pytest.mark.parametrize("content", [{"gradient_accumulation_steps": "auto"}, {}])
def test_a_file_that_leaves_a_number_open_gets_it_from_here(content: dict[str, str]) -> None:
    Path("ds.json").write_text(json.dumps(content))
    encoded = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    for file in ("ds.json", encoded):
        line = f"--use_deepspeed --deepspeed_config_file {file} --gradient_accumulation_steps 2 SCRIPT"
        assert plan_of(line).env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "2"


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="deepspeed_config_file ds.jsn"):
        plan_of("--use_deepspeed --deepspeed_config_file ds.jsn SCRIPT")
    with pytest.raises(FileNotFoundError, match="--deepspeed_hostfile host"):
        plan_of("--use_deepspeed --deepspeed_hostfile host SCRIPT")
