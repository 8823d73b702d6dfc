"""The public face of config files: what they are, where the default one lies, and how one is read."""

from __future__ import annotations

from accelerate.config.cluster import ClusterConfig
from accelerate.config.files import cache_dir as _cache_dir
from accelerate.config.load import load_config
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.config.schema import BaseConfig

__all__ = [
    "BaseConfig",
    "ClusterConfig",
    "SageMakerConfig",
    "cache_dir",
    "default_config_file",
    "default_json_config_file",
    "default_yaml_config_file",
    "hf_cache_home",
    "load_config_from_file",
]

hf_cache_home = str(_cache_dir().parent)
cache_dir = str(_cache_dir())
default_yaml_config_file = str(_cache_dir() / "default_config.yaml")
# 1.15 gives both the same name, and so the same file: JSON is YAML as well.
default_json_config_file = default_yaml_config_file
default_config_file = default_yaml_config_file


def load_config_from_file(config_file: str | None = None) -> ClusterConfig | SageMakerConfig:
    """Return the config of a file, by default that of `accelerate config`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: its content isn't a config; the message names the key.
    """
    return load_config(config_file)
