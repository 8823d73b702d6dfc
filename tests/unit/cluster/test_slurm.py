"""Tasks of a SLURM job step: which variables make one, and what its ranks and meeting point are."""

from __future__ import annotations

import pytest

from accelerate.base.slurm import Step, first_host, tasks_per_node
from accelerate.cluster.environments import MPI, SingleProcess, Slurm, TorchElastic, detect_environment
from accelerate.cluster.topology import Topology

TASK = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_STEP_NODELIST": "a1,b[07-09,12]",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[03-07,9],login1", "gpu03"), ("a1,b[1-2]", "a1"), ("r[2,4]n[1-3]", "r2n1"), ("one", "one"), ("x-1", "x-1")],
)
def test_the_first_machine_of_a_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("3,2", [3, 2])])
def test_tasks_on_each_machine(text, counts):
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, Slurm),
        ({"LOCAL_RANK": "0"}, TorchElastic),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, MPI),
        ({"PMI_RANK": "4", "PMI_SIZE": "5"}, Slurm),
        ({"SLURM_STEP_NUM_TASKS": "1"}, SingleProcess),
    ],
)
def test_who_started_a_process_inside_of_a_job(more, kind):
    assert type(detect_environment({**TASK, **more})) is kind


def test_a_batch_script_is_no_task():
    assert Step.of({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None


def test_ranks_and_meeting_point():
    here = Slurm(TASK)
    assert here.topology() == Topology(4, 5, 1, 2, 1, 2)
    assert (here.main_address(), here.main_port()) == ("a1", 15120)
    other = Slurm({**TASK, "MASTER_ADDR": "z", "MASTER_PORT": "9"})
    assert (other.main_address(), other.main_port()) == ("z", 9)
