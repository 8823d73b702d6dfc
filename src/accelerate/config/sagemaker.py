"""What the config file of an Amazon SageMaker job says: :class:`SageMakerConfig`. The schema only, as data."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.base.constants import (
    SAGEMAKER_PARALLEL_EC2_INSTANCES,
    SAGEMAKER_PYTHON_VERSION,
    SAGEMAKER_PYTORCH_VERSION,
    SAGEMAKER_TRANSFORMERS_VERSION,
)
from accelerate.config.cluster import by_dest, read_section
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import SageMakerDistributedType
from accelerate.config.option import Choice, Integer, Section, option, options, shared
from accelerate.config.resolve import Settings
from accelerate.config.schema import BaseConfig

DYNAMO = "dynamo_config"
#: Keys that say the same of a job as of any launch.
OF_ANY_LAUNCH = ("mixed_precision", "use_cpu", "debug", "enable_cpu_affinity", "num_machines")


def _distributed(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for more than one process."""
    return answers.get("distributed_type", SageMakerDistributedType.NO) != SageMakerDistributedType.NO


def _stock_image(answers: Mapping[str, Any]) -> bool:
    """Whether the job runs in an image of Amazon's, which is found by versions."""
    return not answers.get("image_uri")


@dataclass
class SageMakerConfig(BaseConfig):
    """The settings of a job on Amazon SageMaker."""

    distributed_type: SageMakerDistributedType = option(
        kind=Choice.of(SageMakerDistributedType),
        yaml="distributed_type",
        help="NO runs one process, DATA_PARALLEL one for each GPU, MODEL_PARALLEL divides the model over them.",
        ask="How should the job be distributed?",
    )
    ec2_instance_type: str = option(
        yaml="ec2_instance_type",
        help=f"The type of machine; SageMaker's data parallelism needs one as {SAGEMAKER_PARALLEL_EC2_INSTANCES[0]}.",
        ask="Which type of machine should the job run on?",
        suggest="ml.p3.2xlarge",
    )
    iam_role_name: str = option(
        yaml="iam_role_name",
        help="The IAM role that the job runs as, by name or ARN; SageMaker must be allowed to take it on.",
        ask="Which IAM role should the job run as?",
        suggest="accelerate_sagemaker_execution_role",
    )
    image_uri: str | None = option(
        None,
        yaml="image_uri",
        help="The container image of the job; leave it empty for a stock one, found by the versions that come next.",
        ask="Which container image should the job run in?",
    )
    profile: str | None = option(
        None,
        yaml="profile",
        help="The AWS profile with the credentials; leave it empty to use those of the environment.",
        ask="Which AWS profile should be used?",
    )
    region: str = option(
        "us-east-1", yaml="region", help="The AWS region.", ask="In which AWS region should the job run?"
    )
    num_machines: int = option(
        1,
        kind=Integer(1),
        yaml="num_machines",
        help="How many machines take part.",
        ask="How many machines should the job have?",
        when=_distributed,
    )
    gpu_ids: str = option("all", yaml="gpu_ids", help="The accelerators to use; a job always has all of its machines.")
    base_job_name: str = option(
        "accelerate-sagemaker-1",
        yaml="base_job_name",
        help="What the names of the jobs start with.",
        ask="What should the names of the jobs start with?",
    )
    pytorch_version: str = option(
        SAGEMAKER_PYTORCH_VERSION,
        yaml="pytorch_version",
        help="PyTorch of the stock image.",
        ask="Which version of PyTorch should the image have?",
        when=_stock_image,
    )
    transformers_version: str = option(
        SAGEMAKER_TRANSFORMERS_VERSION,
        yaml="transformers_version",
        help="Transformers of the stock image.",
        ask="Which version of transformers should the image have?",
        when=_stock_image,
    )
    py_version: str = option(
        SAGEMAKER_PYTHON_VERSION,
        yaml="py_version",
        help="Python of the stock image, as py310.",
        ask="Which version of Python should the image have?",
        when=_stock_image,
    )
    sagemaker_inputs_file: str | None = option(
        None,
        yaml="sagemaker_inputs_file",
        help="A table of channels and where their data lie: a header line, then two columns with a tab between.",
        ask="Which file lists the inputs of the job? (empty: there are none)",
    )
    sagemaker_metrics_file: str | None = option(
        None,
        yaml="sagemaker_metrics_file",
        help="A table of metrics and the patterns that find them in the log, in the same form.",
        ask="Which file lists the metrics of the job? (empty: there are none)",
    )
    additional_args: dict[str, Any] | None = option(
        None, kind=Section(), yaml="additional_args", help="Further arguments of SageMaker's Hugging Face estimator."
    )
    dynamo_config: dict[str, Any] | None = option(
        None, kind=Section(), yaml=DYNAMO, help="Compiling the model with `torch.compile`."
    )
    enable_cpu_affinity: bool = shared(Settings, "enable_cpu_affinity", default=False)

    @classmethod
    def checked(cls, content: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values of `content` as the kinds of their Options, those of `dynamo_config` included."""
        values = super().checked(content, where)
        if values.get(DYNAMO):
            values[DYNAMO] = read_section(DYNAMO, TorchDynamoPlugin, values[DYNAMO], where)
        return values

    def values(self) -> dict[str, Any]:
        """Return, by `dest`, what was written down that any launch can be told; the rest is about the job itself."""
        found = {options(type(self))[name].dest: getattr(self, name) for name in OF_ANY_LAUNCH if name in self.given}
        return {**found, **by_dest(TorchDynamoPlugin, self.dynamo_config or {})}
