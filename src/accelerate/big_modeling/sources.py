"""From what a person names (a folder, a file, an id on the hub) to a model on meta and what its configuration says.

Where a checkpoint is at hand the headers of its files tell everything, and no code of the model is run. Otherwise
transformers builds the model from its configuration, without weights. Only ids that are neither a local path nor in
the cache of the hub need a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelerate.base.constants import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from accelerate.base.messages import message
from accelerate.base.packages import is_timm_available, is_transformers_available
from accelerate.big_modeling.checkpoint_file import SAFETENSORS_DTYPES
from accelerate.big_modeling.llama import CONFIGS, build_llama
from accelerate.big_modeling.locate import open_all
from accelerate.big_modeling.meta import init_empty_weights
from accelerate.big_modeling.skeleton import NO_SPLIT, Layout, build_skeleton, layout_of

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

#: What ids of models of timm begin with.
TIMM = "timm/"


@dataclass(frozen=True)
class Source:
    """A model that was named.

    Args:
        title: how it is called.
        model: the model, on meta.
        no_split: names of classes in it that are not to be split.
        config: its configuration, as far as it is known.
    """

    title: str
    model: torch.nn.Module
    no_split: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def open_source(
    name: str, *, library: str | None = None, trust_remote_code: bool = False, token: str | None = None
) -> Source:
    """Return the model that `name` stands for.

    Args:
        name: a folder with a checkpoint or a `config.json`, such a file, a safetensors file or index, a shape of
            `llama.CONFIGS`, or an id on the hub.
        library: "timm" or "transformers", for ids; by default what the model says.
        trust_remote_code: let code that comes with a configuration run.
        token: for private models on the hub.

    Raises:
        ValueError: there is no such model, or nothing that tells its size.
        ImportError: it takes a library to build it that is not installed.
    """
    path = Path(name)
    if path.is_file():
        return _from_file(path, trust_remote_code)
    if path.is_dir():
        return _from_folder(path, path.resolve().name, trust_remote_code)
    if name in CONFIGS:
        return Source(name, build_llama(name), ("LlamaDecoderLayer",), {"model_type": "llama", **CONFIGS[name]})
    if library == "timm" or name.startswith(TIMM):
        return _from_timm(name)
    cached = _cached(name)
    return (
        _from_hub(name, trust_remote_code, token) if cached is None else _from_folder(cached, name, trust_remote_code)
    )


def _from_file(path: Path, trust_remote_code: bool) -> Source:
    if path.suffix != ".json":
        if path.suffix not in (".safetensors", ".bin"):
            raise ValueError(_not_a_model(str(path), "it is neither a checkpoint, nor an index, nor a configuration"))
        return _from_layout(path.stem, layout_of(open_all(path)), _config_in(path.parent))
    content = _read_json(path)
    title = path.resolve().parent.name or path.stem
    if "weight_map" in content:
        return _from_layout(title, layout_of(open_all(path)), _config_in(path.parent))
    return _from_config(str(path), title, trust_remote_code)


def _from_folder(path: Path, title: str, trust_remote_code: bool) -> Source:
    for pattern in WEIGHTS:
        index = sorted(path.glob(f"{pattern}.index.json"))
        files = index[:1] or sorted(path.glob(pattern))
        if files:
            opened = [file for each in files for file in open_all(each)]
            return _from_layout(title, layout_of(opened), _config_in(path))
    if (path / CONFIG).is_file():
        return _from_config(str(path), title, trust_remote_code)
    raise ValueError(_not_a_model(str(path), f"it has neither weights ({' or '.join(WEIGHTS)}) nor a {CONFIG}"))


def _from_layout(title: str, layout: Layout, config: Mapping[str, Any]) -> Source:
    return Source(title, build_skeleton(layout), NO_SPLIT, config)


def _config_in(folder: Path) -> dict[str, Any]:
    """Return the configuration in a folder, an empty one if there is none."""
    return _read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_not_a_model(str(path), f"it can't be read as JSON ({error})")) from error
    if not isinstance(found, dict):
        raise ValueError(_not_a_model(str(path), "it holds no settings by name"))
    return found


def _from_config(location: str, title: str, trust_remote_code: bool) -> Source:
    """Return the model that transformers builds from a configuration."""
    if not is_transformers_available():
        raise ImportError(_needs("transformers", f"the configuration {location} without weights"))
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=trust_remote_code)
        model = _build(AutoModel, config, trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_not_a_model(location, f"transformers can't build it: {_first_line(error)}")) from error
    no_split = tuple(sorted(getattr(model, "_no_split_modules", None) or ()))
    return Source(title, model, no_split, config.to_dict())


def _build(auto: Any, config: Any, trust_remote_code: bool) -> torch.nn.Module:
    """Return the model of a configuration: of the class that it names, so that heads count, if there is one."""
    import transformers

    named = [getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ()]
    with init_empty_weights():
        if named and named[0] is not None:
            found: torch.nn.Module = named[0](config)
        else:
            found = auto.from_config(config, trust_remote_code=trust_remote_code)
    return found


def _from_timm(name: str) -> Source:
    """Return a model of timm."""
    if not is_timm_available():
        raise ImportError(_needs("timm", f"model {name!r}"))
    import timm

    with init_empty_weights():
        model = timm.create_model(name.removeprefix(TIMM).partition(".")[0], pretrained=False)
    return Source(name, model)


def _cached(name: str) -> Path | None:
    """Return the folder that an id has in the cache of the hub, if what tells its size is there."""
    from huggingface_hub import try_to_load_from_cache

    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        return None
    for file in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, CONFIG):
        found = try_to_load_from_cache(name, file)
        if isinstance(found, str) and (file != SAFE_WEIGHTS_INDEX_NAME or any(Path(found).parent.glob(WEIGHTS[0]))):
            return Path(found).parent
    return None


def _from_hub(name: str, trust_remote_code: bool, token: str | None) -> Source:
    """Return a model on the hub, from the headers of its files, which is all that is downloaded of them."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError

    api = HfApi(token=token)
    try:
        found = api.get_safetensors_metadata(name)
    except NotASafetensorsRepoError:
        return _from_config(name, name, trust_remote_code)
    except Exception as error:  # the hub's client raises errors of several libraries, and all mean the same here
        raise ValueError(_not_a_model(name, f"it is no local path, and the hub says: {_first_line(error)}")) from error
    layout = {
        tensor: (tuple(info.shape), SAFETENSORS_DTYPES[info.dtype])
        for file in found.files_metadata.values()
        for tensor, info in file.tensors.items()
    }
    return _from_layout(name, layout, _hub_config(api, name))


def _hub_config(api: Any, name: str) -> dict[str, Any]:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return _read_json(Path(api.hf_hub_download(name, CONFIG)))
    except EntryNotFoundError:
        return {}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _needs(library: str, given: str) -> str:
    return message(
        given=given,
        why=f"it takes {library} to build the model, and it is not installed",
        allowed=f"what {library} knows once it is installed; without it, folders and files with weights",
        do=f"run `pip install {library}`, or name a folder with weights",
    )


def _not_a_model(name: str, why: str) -> str:
    return message(
        given=f"model {name!r}",
        why=why,
        allowed=f"a folder with weights or a {CONFIG}, such a file, an index, or an id on the hub",
        do="check the path; without a network only local paths, and models in the cache of the hub, can be looked at",
    )
