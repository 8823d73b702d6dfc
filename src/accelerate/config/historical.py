"""What config files of earlier releases say, in today's words.

Each old key is one row or one small function here; the rest of the library knows today's keys only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.base.environ import FALSE_WORDS, TRUE_WORDS
from accelerate.base.messages import message, warn_once

# (section, old key) -> today's key
RENAMED_KEYS = {("fsdp_config", "fsdp_backward_prefetch_policy"): "fsdp_backward_prefetch"}


def modernise(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config file with every historical key replaced by today's."""
    content = dict(raw)
    _replace(content, "fp16", "mixed_precision", _precision_of_fp16)
    _replace(content, "dynamo_backend", "dynamo_config", _section_of_dynamo_backend)
    for (section, old), new in RENAMED_KEYS.items():
        settings = content.get(section)
        if isinstance(settings, Mapping) and old in settings:
            content[section] = _renamed(settings, old, new)
    return content


def _replace(content: dict[str, Any], old: str, new: str, convert: Any) -> None:
    """Replace key `old` of `content` by `new`, unless `new` is there and says something else."""
    if old not in content:
        return
    given = content.pop(old)
    value = convert(given)
    if content.get(new) and content[new] != value:
        raise ValueError(
            message(
                given=f"{old}: {given!r} and {new}: {content[new]!r} in one config file",
                why=f"{old} is the old spelling of {new}, and the two contradict each other",
                allowed=f"{new} alone",
                do=f"delete the line `{old}: {given}`",
            )
        )
    content[new] = value


def _precision_of_fp16(given: Any) -> Any:
    """Return the precision that `fp16: true` or `fp16: false` stood for."""
    word = str(given).lower()
    if word not in TRUE_WORDS + FALSE_WORDS:
        return given
    return "fp16" if word in TRUE_WORDS else "no"


def _section_of_dynamo_backend(given: Any) -> dict[str, Any]:
    """Return the section that a top-level `dynamo_backend` stood for; YAML reads an unquoted NO as false."""
    return {} if given in (None, False) or str(given).upper() == "NO" else {"dynamo_backend": given}


def _renamed(section: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return `section` with key `old` called `new`, saying so."""
    warn_once(f"The key {old} in the config file is an old spelling; write {new} instead.", FutureWarning, stacklevel=5)
    renamed = dict(section)
    value = renamed.pop(old)
    renamed.setdefault(new, value)
    return renamed
