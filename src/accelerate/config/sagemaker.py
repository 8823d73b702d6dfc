"""What the config file of an Amazon SageMaker job says: :class:`SageMakerConfig`. The schema only, as data."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.base.constants import (
    SAGEMAKER_PYTHON_VERSION,
    SAGEMAKER_PYTORCH_VERSION,
    SAGEMAKER_TRANSFORMERS_VERSION,
)
from accelerate.config.enums import SageMakerDistributedType
from accelerate.config.option import Choice, Integer, Section, option, shared
from accelerate.config.resolve import Settings
from accelerate.config.schema import BaseConfig


@dataclass
class SageMakerConfig(BaseConfig):
    """The settings of a job on Amazon SageMaker."""

    distributed_type: SageMakerDistributedType = option(
        kind=Choice.of(SageMakerDistributedType), yaml="distributed_type", help="How the job is distributed."
    )
    ec2_instance_type: str = option(yaml="ec2_instance_type", help="The type of machine.")
    iam_role_name: str = option(yaml="iam_role_name", help="The IAM role that the job runs as.")
    image_uri: str | None = option(None, yaml="image_uri", help="The container image; a stock one by default.")
    profile: str | None = option(None, yaml="profile", help="The AWS profile with the credentials.")
    region: str = option("us-east-1", yaml="region", help="The AWS region.")
    num_machines: int = option(1, kind=Integer(1), yaml="num_machines", help="How many machines take part.")
    gpu_ids: str = option("all", yaml="gpu_ids", help="The accelerators to use.")
    base_job_name: str = option(
        "accelerate-sagemaker-1", yaml="base_job_name", help="What the names of the jobs start with."
    )
    pytorch_version: str = option(SAGEMAKER_PYTORCH_VERSION, yaml="pytorch_version", help="PyTorch of the image.")
    transformers_version: str = option(
        SAGEMAKER_TRANSFORMERS_VERSION, yaml="transformers_version", help="Transformers of the image."
    )
    py_version: str = option(SAGEMAKER_PYTHON_VERSION, yaml="py_version", help="Python of the image.")
    sagemaker_inputs_file: str | None = option(
        None, yaml="sagemaker_inputs_file", help="A table of channels and where their data lie."
    )
    sagemaker_metrics_file: str | None = option(
        None, yaml="sagemaker_metrics_file", help="A table of metrics and the patterns that find them in the log."
    )
    additional_args: dict[str, Any] | None = option(
        None, kind=Section(), yaml="additional_args", help="Further arguments of the SageMaker estimator."
    )
    dynamo_config: dict[str, Any] | None = option(
        None, kind=Section(), yaml="dynamo_config", help="Compiling the model with `torch.compile`."
    )
    enable_cpu_affinity: bool = shared(Settings, "enable_cpu_affinity", default=False)
