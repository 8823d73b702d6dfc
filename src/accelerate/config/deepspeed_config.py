"""A configuration of DeepSpeed as other libraries ask it: by dotted keys, whatever of it is there."""

from __future__ import annotations

import base64
import binascii
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from accelerate.base.messages import message

#: Where states are offloaded to; "none" is also a device of DeepSpeed.
OFFLOADED = ("cpu", "nvme")
SECTION = "zero_optimization"


class HfDeepSpeedConfig:
    """A configuration of DeepSpeed; `config` is the dictionary, and may be changed.

    Keys lead through its sections with dots: "zero_optimization.offload_param.device".

    Args:
        config_file_or_dict: a dictionary, which is copied, the path of a JSON file, or JSON in base64.

    Raises:
        ValueError: a text is neither the path of a file nor JSON in base64, or no dictionary is in it.
        TypeError: something else was given.
    """

    def __init__(self, config_file_or_dict: dict[str, Any] | str | Path) -> None:
        self.config: dict[str, Any] = _read(config_file_or_dict)
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        """Note which stage of ZeRO is configured (-1: none), and whether anything is offloaded in stage 2 or 3."""
        self._stage = self.get_value(f"{SECTION}.stage", -1)
        places = (self.get_value(f"{SECTION}.offload_{what}.device") for what in ("optimizer", "param"))
        self._offload = self._stage in (2, 3) and any(place in OFFLOADED for place in places)

    def find_config_node(self, ds_key_long: str) -> tuple[Any, str]:
        """Return the section that a key is in, None if there is no such section, and the key's name in it."""
        *sections, name = ds_key_long.split(".")
        node: Any = self.config
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        return (node if isinstance(node, dict) else None), name

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if it isn't there."""
        node, name = self.find_config_node(ds_key_long)
        return default if node is None else node.get(name, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Remove a key with everything under it.

        Raises:
            ValueError: it isn't there, and `must_exist`.
        """
        node, name = self.find_config_node(ds_key_long)
        if node is not None and name in node:
            del node[name]
        elif must_exist:
            raise ValueError(
                message(
                    given=f"the key {ds_key_long} to be removed from a configuration of DeepSpeed",
                    why="it isn't there",
                    allowed="keys of this configuration, with must_exist=False also others",
                    do=f"look at what there is: {', '.join(map(str, node if node is not None else self.config))}",
                )
            )

    def is_true(self, ds_key_long: str) -> bool:
        """Return whether a key is there and its value counts as true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Return whether a key is there and its value counts as false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Return whether optimizer states and gradients are sharded."""
        return bool(self._stage == 2)

    def is_zero3(self) -> bool:
        """Return whether parameters are sharded too."""
        return bool(self._stage == 3)

    def is_offload(self) -> bool:
        """Return whether optimizer states or parameters are kept in host memory or on a disk."""
        return self._offload


def _read(given: Any) -> dict[str, Any]:
    """Return the dictionary that was given, or that is in a file or a text."""
    if isinstance(given, dict):
        return deepcopy(given)
    if not isinstance(given, str | Path):
        raise TypeError(_refusal(repr(given), f"it is a {type(given).__name__}"))
    if Path(given).is_file():
        text, source = Path(given).read_bytes(), f"the file {given}"
    else:
        text, source = _decoded(str(given)), "a text that is no path of a file"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(_refusal(source, f"it isn't JSON: {error}")) from error
    if not isinstance(config, dict):
        raise ValueError(_refusal(source, f"the JSON in it is a {type(config).__name__}"))
    return config


def _decoded(text: str) -> bytes:
    """Return the bytes that a text in base64 stands for."""
    try:
        return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(_refusal(repr(text), "there is no such file, and it isn't base64")) from error


def _refusal(given: str, why: str) -> str:
    return message(
        given=f"a configuration of DeepSpeed: {given}",
        why=why,
        allowed="a dictionary, the path of a JSON file, or a JSON object in base64",
        do="correct the path, or hand the dictionary over",
    )
