"""Jobs on Amazon SageMaker with version 3 of its SDK, which has `ModelTrainer` where version 2 had estimators.

The arguments of the estimator are put into the trainer's words by one table. The trainer is given the image by name,
which the SDK finds by the same versions; processes are started by torchrun.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.base.messages import did_you_mean, message

#: Seconds that a job may take unless the config file says otherwise, as with the estimator.
ONE_DAY = 24 * 60 * 60
REQUIREMENTS = "requirements.txt"

# Argument of the estimator -> (setting of the trainer, its field); a field of None: the setting itself.
TRAINER_WORDS: dict[str, tuple[str, str | None]] = {
    "image_uri": ("training_image", None),
    "role": ("role", None),
    "base_job_name": ("base_job_name", None),
    "environment": ("environment", None),
    "hyperparameters": ("hyperparameters", None),
    "input_mode": ("training_input_mode", None),
    "entry_point": ("source_code", "entry_script"),
    "source_dir": ("source_code", "source_dir"),
    "instance_type": ("compute", "instance_type"),
    "instance_count": ("compute", "instance_count"),
    "volume_size": ("compute", "volume_size_in_gb"),
    "volume_kms_key": ("compute", "volume_kms_key_id"),
    "keep_alive_period_in_seconds": ("compute", "keep_alive_period_in_seconds"),
    "use_spot_instances": ("compute", "enable_managed_spot_training"),
    "max_run": ("stopping_condition", "max_runtime_in_seconds"),
    "max_wait": ("stopping_condition", "max_wait_time_in_seconds"),
    "subnets": ("networking", "subnets"),
    "security_group_ids": ("networking", "security_group_ids"),
    "enable_network_isolation": ("networking", "enable_network_isolation"),
    "encrypt_inter_container_traffic": ("networking", "enable_inter_container_traffic_encryption"),
    "output_path": ("output_data_config", "s3_output_path"),
    "output_kms_key": ("output_data_config", "kms_key_id"),
    "checkpoint_s3_uri": ("checkpoint_config", "s3_uri"),
    "checkpoint_local_path": ("checkpoint_config", "local_path"),
}
#: Arguments of the estimator that choose the stock image, which a trainer is given by name.
VERSIONS = ("transformers_version", "pytorch_version", "py_version")
#: Arguments of the estimator that are told to the trainer in another way, or are about what it hasn't.
TOLD_OTHERWISE = (*VERSIONS, "distribution", "metric_definitions", "tags", "debugger_hook_config")
#: The classes of settings that have fields.
CLASSES = {
    "source_code": "SourceCode",
    "compute": "Compute",
    "stopping_condition": "StoppingCondition",
    "networking": "Networking",
    "output_data_config": "OutputDataConfig",
    "checkpoint_config": "CheckpointConfig",
}


def train(arguments: Mapping[str, Any], channels: Mapping[str, str] | None) -> Any:
    """Ask for a job and return the SDK's object for it, which needn't have started yet.

    Args:
        arguments: those of the estimator.
        channels: name and place of its inputs.

    Raises:
        ValueError: the trainer has no word for an argument.
    """
    from sagemaker.core import shapes
    from sagemaker.core.training import configs

    trainer = _trainer(arguments)
    metrics = arguments.get("metric_definitions") or []
    if metrics:
        trainer.with_metric_definitions(
            [shapes.MetricDefinition(name=one["Name"], regex=one["Regex"]) for one in metrics]
        )
    data = [configs.InputData(channel_name=name, data_source=place) for name, place in (channels or {}).items()]
    trainer.train(input_data_config=data or None, wait=False, logs=False)
    return trainer._latest_training_job  # the SDK has no public name for it


def _trainer(arguments: Mapping[str, Any]) -> Any:
    """Return the SDK's trainer for the arguments of the estimator."""
    import boto3
    from sagemaker.core import shapes
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.core.training import configs
    from sagemaker.train import ModelTrainer

    session = boto3.Session()  # one that was made before may be of another region or profile
    settings = {
        name: getattr(configs, CLASSES[name])(**value) if name in CLASSES else value
        for name, value in trainer_settings(arguments).items()
    }
    if "training_image" not in settings:
        settings["training_image"] = image(arguments, session.region_name)
    return ModelTrainer(
        **settings,
        sagemaker_session=Session(boto_session=session),
        distributed=_runner(arguments.get("distribution")),
        tags=[shapes.Tag(key=tag["Key"], value=tag["Value"]) for tag in arguments.get("tags") or []] or None,
    )


def trainer_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the trainer for the arguments of the estimator, as plain values.

    Raises:
        ValueError: it has no word for an argument.
    """
    _check(arguments)
    settings: dict[str, Any] = {}
    for name, value in {"max_run": ONE_DAY, **arguments}.items():
        setting, field = TRAINER_WORDS.get(name, (None, None))
        if setting is None or value is None:
            continue
        if field is None:
            settings[setting] = value
        else:
            settings.setdefault(setting, {})[field] = value
    if Path(arguments["source_dir"], REQUIREMENTS).is_file():
        settings["source_code"]["requirements"] = REQUIREMENTS  # the estimator installs them unasked
    return settings


def _check(arguments: Mapping[str, Any]) -> None:
    """Refuse what the trainer has no word for."""
    for name, value in arguments.items():
        known = name in TRAINER_WORDS or (name in TOLD_OTHERWISE and not (name == "debugger_hook_config" and value))
        if not known and value is not None:
            raise ValueError(
                message(
                    given=f"`additional_args` with `{name}` in the config file",
                    why="version 3 of SageMaker's SDK has no such setting",
                    allowed=", ".join(sorted({*TRAINER_WORDS, *TOLD_OTHERWISE})),
                    do=f"{did_you_mean(name, TRAINER_WORDS)} Or use version 2: pip install 'sagemaker<3'",
                )
            )
    short = [name for name in arguments["hyperparameters"] if len(name) == 1]
    if short:
        raise ValueError(
            message(
                given=f"argument -{short[0]} of the script",
                why=f"version 3 of SageMaker's SDK hands it on as --{short[0]}",
                allowed="flags with a name of two letters or more",
                do="write the long form of the flag",
            )
        )


def runner(distribution: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]] | None:
    """Return the class that starts several processes on a machine, and its settings; None for one process.

    Args:
        distribution: as the estimator is told.
    """
    told = distribution or {}
    sagemakers = told.get("smdistributed") or {}
    if "modelparallel" in sagemakers:
        return "Torchrun", {"smp": dict(sagemakers["modelparallel"].get("parameters") or {})}
    if "dataparallel" in sagemakers or "torch_distributed" in told or "pytorchddp" in told:
        return "Torchrun", {}
    if "mpi" in told:
        options = told["mpi"].get("custom_mpi_options")
        facts = {
            "process_count_per_node": told["mpi"].get("processes_per_host"),
            "mpi_additional_options": shlex.split(options) if options else None,
        }
        return "MPI", {name: value for name, value in facts.items() if value is not None}
    if not told:
        return None
    raise ValueError(
        message(
            given=f"`additional_args` with `distribution: {dict(told)}` in the config file",
            why="version 3 of SageMaker's SDK starts processes with torchrun or MPI alone",
            allowed="torch_distributed, smdistributed, mpi",
            do="choose one of them, or use version 2: pip install 'sagemaker<3'",
        )
    )


def _runner(distribution: Mapping[str, Any] | None) -> Any:
    """Return the SDK's object for what starts several processes on a machine, or None."""
    from sagemaker.train import distributed

    chosen = runner(distribution)
    if chosen is None:
        return None
    name, facts = chosen
    if "smp" in facts:
        facts["smp"] = distributed.SMP(**facts["smp"])
    return getattr(distributed, name)(**facts)


def image(arguments: Mapping[str, Any], region: str) -> str:
    """Return the name of the stock image with these versions of PyTorch, transformers and Python."""
    from sagemaker.core import image_uris

    return str(
        image_uris.retrieve(
            framework="huggingface",
            region=region,
            version=arguments["transformers_version"],
            base_framework_version=f"pytorch{arguments['pytorch_version']}",
            py_version=arguments["py_version"],
            instance_type=arguments["instance_type"],
            image_scope="training",
        )
    )
