"""A configuration of DeepSpeed as other libraries ask it: by dotted keys, whatever of it is there."""

from __future__ import annotations

import base64
import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from accelerate.base.messages import message

#: Where states are offloaded to; "none" is also a device of DeepSpeed.
OFFLOADED = ("cpu", "nvme")
SECTION = "zero_optimization"
SAID = "a configuration of DeepSpeed:"


class HfDeepSpeedConfig:
    """A configuration of DeepSpeed; `config` is the dictionary, and may be changed.

    Keys lead through its sections with dots: "zero_optimization.offload_param.device".

    Args:
        config_file_or_dict: a dictionary, which is copied, the path of a JSON file, or its content, plain or in base64.

    Raises:
        ValueError: a text is none of these, or no dictionary is in it.
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
        raise TypeError(_refusal(f"{SAID} {given!r}", f"it is a {type(given).__name__}"))
    try:
        return content_of(str(given))
    except FileNotFoundError as error:
        raise ValueError(*error.args) from error


def content_of(named: str, said: str = SAID) -> dict[str, Any]:
    """Return what a configuration of DeepSpeed says: the path of a JSON file, or the JSON itself, plain or in base64.

    Args:
        named: one of these.
        said: how a person has named it.

    Raises:
        FileNotFoundError: it is a path, and there is no such file.
        ValueError: it isn't JSON, or holds no settings by name.
    """
    text: str | bytes = named
    if os.path.isfile(named):  # false as well for what is too long for a path
        text = Path(named).read_bytes()
    elif not named.lstrip().startswith("{"):
        try:
            text = base64.b64decode(named.encode(), altchars=b"-_", validate=True)
        except ValueError:
            why = "there is no such file, and it isn't base64"
            raise FileNotFoundError(_refusal(f"{said} {named}", why)) from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(_refusal(f"{said} {named}", f"it isn't JSON: {error}")) from None
    if not isinstance(content, dict):
        why = f"it holds a {type(content).__name__}, not settings by name"
        raise ValueError(_refusal(f"{said} {named}", why))
    return content


def _refusal(given: str, why: str) -> str:
    return message(
        given=given,
        why=why,
        allowed="a dictionary, a JSON file as DeepSpeed reads it, or its content, plain or in base64",
        do="correct the path or the content, or set DeepSpeed up without it",
    )
