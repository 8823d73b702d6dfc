"""The base of the two things a config file can be: a dataclass with Options that is read, checked and written."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from accelerate.base.messages import message
from accelerate.config.enums import ComputeEnvironment, DistributedType, value_of
from accelerate.config.files import check_keys, default_config_path, read_config, to_json, to_yaml, write_config
from accelerate.config.historical import modernise
from accelerate.config.option import Choice, option, options, shared
from accelerate.config.resolve import Settings

C = TypeVar("C", bound="BaseConfig")


@dataclass
class BaseConfig:
    """The settings that every config file has."""

    compute_environment: ComputeEnvironment = option(
        kind=Choice.of(ComputeEnvironment),
        yaml="compute_environment",
        help="LOCAL_MACHINE is this machine, or a cluster that you can log in to.",
        ask="Where does the program run?",
    )
    distributed_type: Any = option(yaml="distributed_type", kind=Choice.of(DistributedType), help="The kind of run.")
    mixed_precision: str | None = shared(Settings, "mixed_precision")
    use_cpu: bool = shared(Settings, "use_cpu")
    debug: bool = shared(Settings, "debug")
    given: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    """The keys that were written down: those of the file, or everything that isn't None or empty."""

    def __post_init__(self) -> None:
        for name, value in type(self).checked(vars(self), "the config").items():
            setattr(self, name, value)
        self.given = frozenset(self.to_dict())

    @classmethod
    def checked(cls, content: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values of `content` as the kinds of their Options; None stays None."""
        return {
            name: content[name] if content[name] is None else declared.read(content[name], f"{name} in {where}")
            for name, declared in options(cls).items()
            if name in content
        }

    @staticmethod
    def process_config(config_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a config file in today's keys, with what may be left out of it filled in."""
        content = {
            "compute_environment": ComputeEnvironment.LOCAL_MACHINE,
            "mixed_precision": None,
            "use_cpu": False,
            "debug": False,
            "enable_cpu_affinity": False,
            **modernise(config_dict),
        }
        if value_of(content.get("distributed_type")) in (False, "NO", "no"):
            content.setdefault("num_processes", 1)
        return content

    @classmethod
    def from_dict(cls: type[C], content: Mapping[str, Any], where: str = "the config") -> C:
        """Return the config that `content` describes.

        Raises:
            ValueError: a key is unknown or missing, or a value isn't allowed; `where` says in what.
        """
        written = modernise(content)
        check_keys(written, options(cls), where)
        values = {name: value for name, value in cls.process_config(written).items() if name in options(cls)}
        for required in fields(cls):
            if required.name not in values and required.init and required.default is MISSING:
                raise _missing(required.name, options(cls)[required.name].kind.allowed, where)
        config = cls(**cls.checked(values, where))
        config.given = frozenset(name for name, value in written.items() if value is not None)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the config file: enums by value, without what is None or an empty section."""
        plain = {name: value_of(getattr(self, name)) for name in options(type(self))}
        return {name: value for name, value in plain.items() if value is not None and value != {}}

    @classmethod
    def from_yaml_file(cls: type[C], yaml_file: str | os.PathLike[str] | None = None) -> C:
        """Read a config file; the default one when none is named."""
        path = default_config_path() if yaml_file is None else yaml_file
        return cls.from_dict(read_config(path), f"config file {path}")

    @classmethod
    def from_json_file(cls: type[C], json_file: str | os.PathLike[str] | None = None) -> C:
        """Read a config file; the default one when none is named."""
        return cls.from_yaml_file(json_file)

    def to_yaml_file(self, yaml_file: str | os.PathLike[str]) -> None:
        """Write the config as YAML."""
        write_config(yaml_file, self.to_dict(), to_yaml)

    def to_json_file(self, json_file: str | os.PathLike[str]) -> None:
        """Write the config as JSON."""
        write_config(json_file, self.to_dict(), to_json)


def _missing(name: str, allowed: str, where: str) -> ValueError:
    """Return the error for a required key that isn't there."""
    return ValueError(
        message(
            given=f"{where} without `{name}`",
            why=f"`{name}` has no default",
            allowed=allowed,
            do=f"add a line `{name}: …`, or write the file anew with `accelerate config`",
        )
    )
