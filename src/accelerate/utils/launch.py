"""What launchers do, as scripts import it."""

from __future__ import annotations

from accelerate.launchers.functions import PrepareForLaunch
from accelerate.launchers.sagemaker import prepare_sagemager_args_inputs
from accelerate.launchers.sagemaker_job import hyperparameters as _convert_nargs_to_dict

__all__ = ["PrepareForLaunch", "_convert_nargs_to_dict", "prepare_sagemager_args_inputs"]
