"""The questionnaire about jobs on Amazon SageMaker. Questions, choices and conditions are those of the Options."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.base.environ import patch_environment
from accelerate.base.messages import message
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import ComputeEnvironment
from accelerate.config.questionnaire import Prompt, ask, file_content, on_terminal
from accelerate.config.sagemaker import SageMakerConfig

#: Questions, by `dest`, about the machine that a script runs on, which SageMaker chooses.
NOT_ASKED = ("cpu", "enable_cpu_affinity")
#: Who may take on the role of a job.
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
#: What a job does in the name of its role: fetch its image, read and write data, write its log and its metrics.
PERMISSIONS = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": [
                "sagemaker:*",
                "ecr:BatchCheckLayerAvailability",
                "ecr:BatchGetImage",
                "ecr:GetAuthorizationToken",
                "ecr:GetDownloadUrlForLayer",
                "s3:CreateBucket",
                "s3:DeleteObject",
                "s3:GetBucketLocation",
                "s3:GetObject",
                "s3:ListBucket",
                "s3:PutObject",
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:GetLogEvents",
                "logs:PutLogEvents",
                "cloudwatch:GetMetricData",
                "cloudwatch:PutMetricData",
            ],
            "Resource": "*",
        }
    ],
}
POLICY_NAME = "accelerate-training-job"


def get_sagemaker_input(prompt: Prompt | None = None) -> SageMakerConfig:
    """Ask for the settings of jobs on SageMaker; the present config file gives the suggestions.

    Args:
        prompt: asks one question; on the terminal by default.
    """
    from accelerate.commands.config.cluster import only_real_questions
    from accelerate.launchers.read import default_file, file_config

    known = file_config(default_file({}))
    offer: dict[str, Sequence[str]] = {
        "compute_environment": [ComputeEnvironment.AMAZON_SAGEMAKER.value],
        **{dest: [] for dest in NOT_ASKED},
    }
    present = known.to_dict() | known.values() if isinstance(known, SageMakerConfig) else {}
    answers = ask(
        SageMakerConfig,
        TorchDynamoPlugin,
        answers=present,
        offer=offer,
        prompt=only_real_questions(prompt or on_terminal),
    )
    kept = {name: present[name] for name in ("additional_args",) if name in present}
    return SageMakerConfig.from_dict(
        {**file_content(answers, SageMakerConfig, TorchDynamoPlugin), **kept}, "the answers"
    )


def ensure_role(config: SageMakerConfig, agrees: Callable[[str], bool]) -> None:
    """Offer to create the role of a config file if the account lacks it; where nobody can look, say why.

    Args:
        config: names the role, and the profile to look with.
        agrees: asks a person whether to.
    """
    if config.iam_role_name.startswith("arn:"):
        return
    variables = {"AWS_DEFAULT_REGION": config.region, **({"AWS_PROFILE": config.profile} if config.profile else {})}
    with patch_environment(**variables):
        try:
            _get_iam_role_arn(config.iam_role_name)
        except Exception as error:  # boto3's own classes are made at run time, and it may be missing itself
            _offer(config.iam_role_name, error, agrees)


def _offer(role_name: str, error: Exception, agrees: Callable[[str], bool]) -> None:
    """Offer to create a role that isn't there; say so when it couldn't be looked for."""
    if type(error).__name__ != "NoSuchEntityException":
        lines = dict(line.partition(": ")[::2] for line in str(error).splitlines())
        print(f"Nobody looked whether there is an IAM role {role_name}: {lines.get('Why not', error)}")
    elif agrees(f"There is no IAM role {role_name}. Create it, with what training jobs need?"):
        _create_iam_role_for_sagemaker(role_name)
        print(f"Created the IAM role {role_name}")


def _get_iam_role_arn(role_name: str) -> str:
    """Return the ARN of a role of the account."""
    return str(_iam().get_role(RoleName=role_name)["Role"]["Arn"])


def _create_iam_role_for_sagemaker(role_name: str) -> None:
    """Create a role that SageMaker may take on, with what a training job does in its name; one that is there stays."""
    client = _iam()
    try:
        client.create_role(RoleName=role_name, AssumeRolePolicyDocument=json.dumps(TRUST))
    except client.exceptions.EntityAlreadyExistsException:
        print(f"There is an IAM role {role_name} already; it stays as it is")
        return
    client.put_role_policy(RoleName=role_name, PolicyName=POLICY_NAME, PolicyDocument=json.dumps(PERMISSIONS))


def _iam() -> Any:
    """Return the client of AWS's identity service.

    Raises:
        ImportError: boto3 isn't installed.
    """
    try:
        import boto3
    except ImportError:
        raise ImportError(
            message(
                given="a question about an IAM role",
                why="the package boto3 isn't installed",
                allowed="an environment with the SDK of AWS",
                do="pip install 'accelerate[sagemaker]'",
            )
        ) from None
    return boto3.client("iam")
