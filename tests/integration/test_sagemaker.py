"""Jobs on SageMaker with both versions of its real SDK, in an AWS that moto plays."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
LIMIT = 280
#: Interpreters with version 2 or 3 of the SDK and moto, which `make test-sagemaker` builds.
PYTHONS = {version: os.environ.get(f"ACCELERATE_TEST_SAGEMAKER_{version}") for version in (2, 3)}
JOB = {"compute_environment": "AMAZON_SAGEMAKER", "ec2_instance_type": "ml.p4d.24xlarge", "iam_role_name": "role"}
DATA = {
    **JOB,
    "distributed_type": "DATA_PARALLEL",
    "num_machines": 2,
    "region": "eu-west-1",
    "mixed_precision": "bf16",
    "sagemaker_inputs_file": "in.tsv",
    "sagemaker_metrics_file": "out.tsv",
    "additional_args": {"max_run": 3600, "environment": {"A": "1"}, "tags": [{"Key": "team", "Value": "b"}]},
}
PARAMETERS = {2: {"partitions": 2, "microbatches": 4, "ddp": True}, 3: {"hybrid_shard_degree": 4}}


def cases(version: int, folder: Path) -> dict[str, Any]:
    """Write the config files, and return what to launch with which."""
    model = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": PARAMETERS[version]}},
        "mpi": {"enabled": True, "processes_per_host": 8},
    }
    configs = {
        "alone": {**JOB, "distributed_type": "NO", "image_uri": "1.dkr.ecr.us-east-1.amazonaws.com/mine:1"},
        "data": DATA,
        "model": {**JOB, "distributed_type": "MODEL_PARALLEL", "additional_args": {"distribution": model}},
        "unknown role": {**JOB, "distributed_type": "NO", "iam_role_name": "nobody"},
    }
    for name, content in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('trained')\n")
    (folder / "code" / "requirements.txt").write_text("accelerate\n")
    (folder / "in.tsv").write_text("channel\tlocation\ntrain\ts3://bucket/train\n")
    (folder / "out.tsv").write_text("name\tpattern\nloss\tloss = ([0-9.]+)\n")
    launches = {
        name: ["--config_file", f"{name}.json", "code/train.py", "--lr", "1e-3", "--epochs", "3", "--version", "1.10"]
        for name in configs
    }
    fails = {"failing": "AlgorithmError: ExecuteUserScriptError: ExitCode 7 ErrorMessage 'no data'"}
    launches["failing"] = launches["alone"]
    return {name: {"arguments": words, "fails": fails.get(name)} for name, words in launches.items()}


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what reached AWS in each case, and the version of the SDK."""
    python = PYTHONS[request.param]
    if python is None:
        pytest.skip(f"no interpreter with version {request.param} of SageMaker's SDK (make test-sagemaker)")
    folder = tmp_path_factory.mktemp(f"sagemaker-{request.param}")
    (folder / "cases").write_text(json.dumps(cases(request.param, folder)))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "AWS_"))}
    done = subprocess.run(
        [str(Path(python).absolute()), str(HERE / "moto_aws.py"), "cases", "results"],
        cwd=folder,
        env={**env, "PYTHONPATH": str(SOURCES), "HF_HOME": str(folder / "home"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads((folder / "results").read_text()), "version": request.param, "said": done.stderr}


def test_one_process(found: dict[str, Any]) -> None:
    job = found["alone"]
    assert (job["code"], job["error"], job["region"]) == (0, None, "us-east-1")
    asked = job["asked"]
    assert asked["AlgorithmSpecification"]["TrainingImage"] == "1.dkr.ecr.us-east-1.amazonaws.com/mine:1"
    assert asked["RoleArn"] == found["role"]["arn"]
    assert (asked["ResourceConfig"]["InstanceType"], asked["ResourceConfig"]["InstanceCount"]) == ("ml.p4d.24xlarge", 1)
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    assert asked["TrainingJobName"].startswith("accelerate-sagemaker-1-")
    own = {name: asked["HyperParameters"][name] for name in ("lr", "epochs", "version")}
    assert own == {"lr": "0.001", "epochs": "3", "version": {2: '"1.10"', 3: "1.10"}[found["version"]]}
    assert {"ACCELERATE_USE_SAGEMAKER": "true", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "NO"}.items() <= asked[
        "Environment"
    ].items()
    assert f"asked SageMaker for job {asked['TrainingJobName']}; its log follows" in found["said"]


def test_the_folder_of_the_script_is_uploaded(found: dict[str, Any]) -> None:
    names = {Path(name).name for name in found["alone"]["uploaded"]}
    assert {"train.py", "requirements.txt"} <= names


def test_data_parallel_with_inputs_and_metrics(found: dict[str, Any]) -> None:
    job = found["data"]
    assert (job["code"], job["error"], job["region"]) == (0, None, "eu-west-1")
    asked = job["asked"]
    assert asked["ResourceConfig"]["InstanceCount"] == 2
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}
    assert {"Name": "loss", "Regex": "loss = ([0-9.]+)"} in asked["AlgorithmSpecification"]["MetricDefinitions"]
    assert {"Key": "team", "Value": "b"} in asked["Tags"]
    assert "huggingface-pytorch-training:1.10.2-transformers4.17.0-gpu-py38" in str(asked["AlgorithmSpecification"])
    channels = {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in asked["InputDataConfig"]}
    assert channels["train"] == "s3://bucket/train"
    expected = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL",
        "A": "1",
    }
    assert expected.items() <= asked["Environment"].items()
    if found["version"] == 2:
        assert asked["HyperParameters"]["sagemaker_distributed_dataparallel_enabled"] == "true"
    else:
        assert "torchrun_driver.py" in str(job["uploaded"])
        assert any("process_count_per_node" in name for name in job["uploaded"])


def test_model_parallel(found: dict[str, Any]) -> None:
    job = found["model"]
    assert (job["code"], job["error"]) == (0, None)
    asked = job["asked"]["HyperParameters"]
    assert json.loads(asked["mp_parameters"]) == PARAMETERS[found["version"]]
    if found["version"] == 2:
        assert asked["sagemaker_mpi_enabled"] == "true"
        assert asked["sagemaker_mpi_num_of_processes_per_host"] == "8"


def test_the_exit_code_of_the_script_is_that_of_the_launch(found: dict[str, Any]) -> None:
    assert (found["failing"]["code"], found["failing"]["error"]) == (7, None)
    assert f"job {found['failing']['asked']['TrainingJobName']} failed: " in found["said"]


def test_what_aws_refuses_is_told_in_four_parts(found: dict[str, Any]) -> None:
    job = found["unknown role"]
    assert job["asked"] is None
    assert job["error"].startswith("RuntimeError: Given: a job of train.py on 1 ml.p4d.24xlarge, as role nobody\n")
    assert "\nWhat to do: " in job["error"]


def test_the_role_of_the_questionnaire(found: dict[str, Any]) -> None:
    assert found["role"]["arn"].endswith(":role/role")
    actions = found["role"]["policy"]["Statement"][0]["Action"]
    assert {"s3:GetObject", "logs:PutLogEvents", "ecr:BatchGetImage"} <= set(actions)
