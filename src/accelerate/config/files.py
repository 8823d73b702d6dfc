"""The door of the config file: YAML and JSON in and out, where the default file lies, and keys that nobody knows.

What the keys mean is the business of the classes in `cluster` and `sagemaker`; here they are only text and mappings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from accelerate.base.environ import read
from accelerate.base.messages import did_you_mean, message
from accelerate.config.historical import modernise

DEFAULT_NAME = "default_config"


def cache_dir() -> Path:
    """Return the folder of the default config file, by HF_HOME, then XDG_CACHE_HOME, then ~/.cache."""
    home = read("HF_HOME")
    root = Path(home) if home else Path(read("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return root.expanduser() / "accelerate"


def default_config_path() -> Path:
    """Return where the default config file is or would be: the JSON one only if there is no YAML one."""
    yaml_path, json_path = (cache_dir() / f"{DEFAULT_NAME}.{suffix}" for suffix in ("yaml", "json"))
    return json_path if json_path.is_file() and not yaml_path.is_file() else yaml_path


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a YAML or JSON (`.json`) config file, historical keys replaced by today's.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: its content can't be read, or isn't `key: value` lines.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            message(
                given=f"config file {path}",
                why="there is no such file",
                allowed="an existing YAML or JSON file",
                do=f"correct the path, or run `accelerate config` to write {default_config_path()}",
            )
        )
    content = _parse(path)
    if not isinstance(content, Mapping):
        why = "it is empty" if content is None else f"its content is a {type(content).__name__}"
        raise _unreadable(path, why)
    return modernise(content)


def write_config(
    path: str | os.PathLike[str], content: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str] | None = None
) -> Path:
    """Write `content` to `path`, all of it or nothing; `render` is by default what the name of the file says."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(render(content) if render else rendered(path, content), encoding="utf-8")
    beside.replace(path)
    return path


def rendered(path: Path, content: Mapping[str, Any]) -> str:
    """Return the text of a config file, keys sorted: JSON for a `.json` file, YAML for any other."""
    return to_json(content) if path.suffix == ".json" else to_yaml(content)


def to_json(content: Mapping[str, Any]) -> str:
    """Return `content` as JSON text."""
    import json

    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def to_yaml(content: Mapping[str, Any]) -> str:
    """Return `content` as YAML text."""
    import yaml

    return yaml.safe_dump(dict(content))


def check_keys(given: Iterable[str], valid: Iterable[str], where: str) -> None:
    """Refuse keys that are not `valid`.

    Raises:
        ValueError: names each unknown key and the valid one nearest to it.
    """
    valid = list(valid)
    unknown = [str(key) for key in given if key not in valid]
    if unknown:
        raise ValueError(
            message(
                given=f"unknown keys {unknown} in {where}",
                why="no setting has this name, so it would be ignored",
                allowed=", ".join(sorted(valid)),
                do=" ".join(f"{key!r}: {did_you_mean(key, valid)}" for key in unknown),
            )
        )


def _parse(path: Path) -> Any:
    """Return what the file says, or which line can't be read."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _parse_json(path, text) if text.strip() else None
    return _parse_yaml(path, text)


def _parse_json(path: Path, text: str) -> Any:
    """Return the content of JSON `text`."""
    import json

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_twice(path, [key for key, _ in pairs])
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _unreadable(path, str(error)) from None


def _parse_yaml(path: Path, text: str) -> Any:
    """Return the content of YAML `text`."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _refuse_twice(path, [str(key.value) for key, _ in node.value])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise _unreadable(path, " ".join(str(error).split())) from None


def _refuse_twice(path: Path, keys: list[str]) -> None:
    """Refuse a key that is written twice, since only one of its values could count."""
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise _unreadable(path, f"it says {', '.join(twice)} more than once")


def _unreadable(path: Path, why: str) -> ValueError:
    """Return the error for a file whose content isn't a config."""
    return ValueError(
        message(
            given=f"config file {path}",
            why=why,
            allowed="`key: value` lines of YAML, or a JSON object in a file that ends in .json",
            do="correct the file, or write a new one with `accelerate config`",
        )
    )
