"""From a config file to the object it describes, whichever of the two kinds it is."""

from __future__ import annotations

import os

from accelerate.config.cluster import ClusterConfig, is_local
from accelerate.config.files import default_config_path, read_config
from accelerate.config.sagemaker import SageMakerConfig


def load_config(path: str | os.PathLike[str] | None = None) -> ClusterConfig | SageMakerConfig:
    """Return the config of a YAML or JSON file, by default that of the default place.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: its content isn't a config; the message names the key.
    """
    chosen = default_config_path() if path is None else path
    content = read_config(chosen)
    schema: type[ClusterConfig] | type[SageMakerConfig] = ClusterConfig if is_local(content) else SageMakerConfig
    return schema.from_dict(content, f"config file {chosen}")
