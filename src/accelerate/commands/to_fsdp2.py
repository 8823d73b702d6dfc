"""`accelerate to-fsdp2`: turn the configuration of an FSDP run of the first version into one of the second.

Every key of the section `fsdp_config` is kept, renamed, dropped with a warning that names it, or refused by name.
"""

from __future__ import annotations

import argparse
import enum
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.base.messages import did_you_mean, message
from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.files import read_config, write_config
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.config.option import options

logger = logging.getLogger(__name__)

DESCRIPTION = "Turn a config file of FSDP version 1 into one of version 2."


class ConversionStatus(enum.Enum):
    """Why a key has no counterpart."""

    NOT_YET_IMPLEMENTED = 0
    REMOVED = -1


#: A key of the first version -> its name in the second, or why there is none.
ARGUMENT_KEY_MAPPING: dict[str, str | ConversionStatus] = {
    "fsdp_version": "fsdp_version",
    "fsdp_reshard_after_forward": "fsdp_reshard_after_forward",
    "fsdp_auto_wrap_policy": "fsdp_auto_wrap_policy",
    "fsdp_backward_prefetch": ConversionStatus.REMOVED,
    "fsdp_forward_prefetch": ConversionStatus.NOT_YET_IMPLEMENTED,
    "fsdp_cpu_ram_efficient_loading": "fsdp_cpu_ram_efficient_loading",
    "fsdp_offload_params": "fsdp_offload_params",
    "fsdp_sharding_strategy": "fsdp_reshard_after_forward",
    "fsdp_state_dict_type": "fsdp_state_dict_type",
    "fsdp_sync_module_states": ConversionStatus.REMOVED,
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params": "fsdp_min_num_params",
    "fsdp_use_orig_params": ConversionStatus.REMOVED,
    "fsdp_activation_checkpointing": "fsdp_activation_checkpointing",
}

_STRATEGIES: dict[str, bool] = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}

#: What the values of a key become.
ARGUMENT_VALUE_MAPPING: dict[str, dict[str, bool]] = {
    "fsdp_sharding_strategy": _STRATEGIES,
    "fsdp_reshard_after_forward": _STRATEGIES,
}

#: What happens without the keys that are dropped.
DROPPED = {
    "fsdp_backward_prefetch": "version 2 gathers units ahead of the backward pass by itself",
    "fsdp_forward_prefetch": "version 2 gathers units ahead of the forward pass by itself",
    "fsdp_sync_module_states": "version 2 begins with the weights of the main process wherever ranks differ",
    "fsdp_use_orig_params": "version 2 always keeps parameters as they are",
}


def convert_config_to_fsdp2(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config file with FSDP of the second version; one that has it already, as it is.

    Args:
        config: the content of a config file.

    Raises:
        ValueError: a key or value has no counterpart.
    """
    section = config.get("fsdp_config") or {}
    if not section:
        logger.warning("There is no fsdp_config to convert; the configuration stays as it is.")
        return dict(config)
    named = {name if name.startswith("fsdp_") else f"fsdp_{name}": value for name, value in section.items()}
    if str(named.get("fsdp_version", 1)) == "2":
        logger.warning("The configuration is one of FSDP version 2 already; it stays as it is.")
        return dict(config)
    new: dict[str, Any] = {}
    for key, value in named.items():
        _convert(key, value, new)
    new["fsdp_version"] = 2
    if "fsdp_state_dict_type" not in new:
        logger.warning("fsdp_state_dict_type is not set: checkpoints were whole files, and are written by shard now.")
    return {**config, "fsdp_config": new, **_replicas(config, named)}


def _convert(key: str, value: Any, new: dict[str, Any]) -> None:
    """Add to `new` what one key has become."""
    target = ARGUMENT_KEY_MAPPING.get(key, key)
    if isinstance(target, ConversionStatus):
        logger.warning("%s is left out: %s.", key, DROPPED[key])
        return
    _check(key, value)
    if key in ARGUMENT_VALUE_MAPPING and value is not None:
        value = ARGUMENT_VALUE_MAPPING[key][_strategy(key, value)]
    if target in new and new[target] != value:
        raise _refused(
            f"fsdp_sharding_strategy and fsdp_reshard_after_forward that come to {new[target]} and {value}",
            "in version 2 the two are one setting",
            "one of them",
            "remove one",
        )
    new[target] = value


def _check(key: str, value: Any) -> None:
    """Refuse a key or a value that the second version has nothing like."""
    keys = {str(declared.key) for declared in options(FullyShardedDataParallelPlugin).values() if declared.key}
    if key not in keys:
        raise _refused(
            f"{key} in fsdp_config", "FSDP has no such setting", ", ".join(sorted(keys)), did_you_mean(key, keys)
        )
    if key == "fsdp_state_dict_type" and _name(value) in ("LOCAL_STATE_DICT", "2"):
        raise _refused(
            f"{key}: {value}",
            "version 2 has no flat parts that each process could write as they are",
            "SHARDED_STATE_DICT, FULL_STATE_DICT",
            "write SHARDED_STATE_DICT, which can be loaded by another number of processes too",
        )
    if key in ARGUMENT_VALUE_MAPPING and value is not None and _strategy(key, value) == "NO_SHARD":
        raise _refused(
            f"{key}: {value}",
            "version 2 always shards",
            "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2",
            "use data parallel replicas instead (distributed_type: MULTI_GPU), or shard",
        )


def _strategy(key: str, value: Any) -> str:
    """Return the name of a strategy from its name or number."""
    names = list(_STRATEGIES)
    known = {name: name for name in names} | {
        str(number): name
        for number, name in enumerate(
            ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"), 1
        )
    }
    if _name(value) not in known:
        raise _refused(
            f"{key}: {value}", "it is no strategy of version 1", ", ".join(names), did_you_mean(_name(value), names)
        )
    return known[_name(value)]


def _name(value: Any) -> str:
    return str(value).upper()


def _replicas(config: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes that a hybrid strategy comes to: replicas on other machines, shards on each."""
    chosen = section.get("fsdp_sharding_strategy") or section.get("fsdp_reshard_after_forward")
    if chosen is None or not _strategy("fsdp_sharding_strategy", chosen).startswith("HYBRID"):
        return {}
    machines, processes = int(config.get("num_machines") or 1), int(config.get("num_processes") or -1)
    if machines == 1:
        return {}
    if processes < 1 or processes % machines:
        raise _refused(
            f"{chosen} on {machines} machines with num_processes: {config.get('num_processes')}",
            "replicas and shards are axes of a mesh in version 2, which needs their sizes",
            "a number of processes that is a multiple of the number of machines",
            "write num_processes into the config file",
        )
    sizes = {
        "parallelism_config_dp_replicate_size": machines,
        "parallelism_config_dp_shard_size": processes // machines,
    }
    return {"parallelism_config": {**sizes, **(config.get("parallelism_config") or {})}}


def _refused(given: str, why: str, allowed: str, do: str) -> ValueError:
    return ValueError(message(given=given, why=why, allowed=allowed, do=do))


def load_config(config_file: str) -> dict[str, Any]:
    """Return the content of a config file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is empty, or can't be read.
    """
    return read_config(config_file)


def _validate_to_fsdp2_args(args: argparse.Namespace) -> None:
    """Refuse files that aren't there, or would be lost.

    Raises:
        FileNotFoundError: there is no config file to convert.
        ValueError: it isn't said where to write.
        FileExistsError: the file to write exists, and may not be replaced.
    """
    if not Path(args.config_file).is_file():
        load_config(args.config_file)  # says so
    if not args.overwrite and args.output_file is None:
        raise _refused(
            "neither --output_file nor --overwrite",
            "it is not said where the new configuration goes",
            "one of them",
            "pass --output_file FILE, or --overwrite to replace the file that is read",
        )
    if not args.overwrite and Path(args.output_file).exists():
        raise FileExistsError(
            message(
                given=f"--output_file {args.output_file}",
                why="this file exists",
                allowed="a file that doesn't exist, or --overwrite",
                do="choose another name, or pass --overwrite to replace it",
            )
        )


def to_fsdp2_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate to-fsdp2`, added to `subparsers` if given."""
    if subparsers is not None:
        parser = subparsers.add_parser("to-fsdp2", help=DESCRIPTION, description=DESCRIPTION)
        parser.set_defaults(func=to_fsdp2_command)
    else:
        parser = CustomArgumentParser("accelerate to-fsdp2", description=DESCRIPTION)
    parser.add_argument("--config_file", required=True, help="The config file to convert.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the file that is written to, if it exists.")
    parser.add_argument("--output_file", help="The file to write; with --overwrite the one that is read, by default.")
    return parser


def to_fsdp2_command(args: argparse.Namespace) -> None:
    """Convert the file that `args` name, and say where the new one is."""
    _validate_to_fsdp2_args(args)
    target = args.output_file or args.config_file
    write_config(target, convert_config_to_fsdp2(load_config(args.config_file)))
    print(f"The configuration of FSDP version 2 is in {target}.")


def main() -> None:
    """Run `accelerate to-fsdp2` as a program of its own."""
    run_command(to_fsdp2_command, to_fsdp2_command_parser().parse_args())


if __name__ == "__main__":
    main()
