"""Launches with SageMaker's SDK in an AWS that moto plays, and writes down what AWS was asked for.

Usage: python moto_aws.py CASES RESULTS, both of JSON: cases are name -> {"arguments": [...], "fails": text or null}. It
runs under an interpreter that has the SDK and moto, but not torch; credentials are made up.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

import botocore.client
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
call = botocore.client.BaseClient._make_api_call


class Ear:
    """Stands between the SDK and the played AWS: remembers jobs, lets them fail, and answers what moto can't."""

    def __init__(self):
        self.asked, self.region, self.fails = None, None, None

    def __call__(self, client, operation, facts):
        if operation == "SimulatePrincipalPolicy":
            results = [{"EvalActionName": action, "EvalDecision": "allowed"} for action in facts["ActionNames"]]
            return {"EvaluationResults": results, "IsTruncated": False}
        if operation == "CreateTrainingJob":
            self.asked, self.region = facts, client.meta.region_name
        answer = call(client, operation, facts)
        if operation == "DescribeTrainingJob" and self.fails:
            answer.update(TrainingJobStatus="Failed", SecondaryStatus="Failed", FailureReason=self.fails)
        return answer

    def launch(self, arguments, fails):
        """Launch once, and return what was asked for, with the exit code or the error."""
        import subprocess

        from accelerate.commands.launch import launch_command, launch_command_parser

        self.asked, self.region, self.fails = None, None, fails
        found = {"code": 0, "error": None}
        try:
            launch_command(launch_command_parser().parse_args(arguments))
        except subprocess.CalledProcessError as failed:
            found["code"] = failed.returncode
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
        code = uploaded(self.region) if self.asked else []
        return {**found, "asked": self.asked, "region": self.region, "uploaded": code}


def uploaded(region):
    """Return the names of the files that were uploaded, those in archives too, and forget them."""
    import boto3

    s3 = boto3.client("s3", region_name=region)
    names = []
    for bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
        for key in [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]:
            names.append(key)
            with tempfile.NamedTemporaryFile() as file:
                s3.download_fileobj(bucket, key, file)
                file.flush()
                if key.endswith(".tar.gz"):
                    with tarfile.open(file.name) as archive:
                        names += archive.getnames()
                elif key.endswith("distributed.json"):
                    names.append(Path(file.name).read_text(encoding="utf-8"))
            s3.delete_object(Bucket=bucket, Key=key)
    return names


def make_role(name):
    """Create the role of the jobs as the questionnaire does, twice, and return what AWS knows of it."""
    import boto3

    from accelerate.commands.config import sagemaker

    sagemaker._create_iam_role_for_sagemaker(name)
    sagemaker._create_iam_role_for_sagemaker(name)  # it is there already, which is no error
    policy = boto3.client("iam").get_role_policy(RoleName=name, PolicyName=sagemaker.POLICY_NAME)
    return {"arn": sagemaker._get_iam_role_arn(name), "policy": policy["PolicyDocument"]}


def main():
    """Run the cases, and write down what came of them."""
    cases, results = (Path(path) for path in sys.argv[1:])
    ear = Ear()
    with mock_aws(), mock.patch("botocore.client.BaseClient._make_api_call", lambda *told: ear(*told)):
        found = {"role": make_role("role")}
        for name, case in json.loads(cases.read_text(encoding="utf-8")).items():
            found[name] = ear.launch(case["arguments"], case["fails"])
    results.write_text(json.dumps(found, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
