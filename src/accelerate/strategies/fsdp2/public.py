"""Sharding as other libraries call it, or replace it.

`accelerate.accelerator` has `fsdp2_prepare_model` as a global name, and asks that name for every model that FSDP2
prepares. torch.distributed is imported when one of these functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.base.environ import write
from accelerate.base.messages import message

if TYPE_CHECKING:
    import os

    import torch

    from accelerate.config.fsdp import FullyShardedDataParallelPlugin as Plugin

    Folder = str | os.PathLike[str]


def fsdp2_prepare_model(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Shard `model` in place as the plugin of `accelerator` says, and return it; a sharded one comes back as it is.

    Args:
        accelerator: an `Accelerator` that trains with FSDP2.
        model: a bare model.
    """
    from torch.distributed.fsdp import FSDPModule

    return model if isinstance(model, FSDPModule) else accelerator._strategy.shard(model)


def enable_fsdp_ram_efficient_loading() -> None:
    """Let only the main process read weights from now on; transformers asks for this too."""
    write("ACCELERATE_USE_FSDP", "True")
    write("FSDP_CPU_RAM_EFFICIENT_LOADING", "True")


def disable_fsdp_ram_efficient_loading() -> None:
    """Let every process read weights from now on."""
    write("FSDP_CPU_RAM_EFFICIENT_LOADING", "False")


def save_fsdp_model(
    fsdp_plugin: Plugin,
    accelerator: Any,
    model: torch.nn.Module,
    output_dir: Folder,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Write the weights of a sharded model, in the layout of the plugin; all processes have to call it.

    Args:
        fsdp_plugin: its `state_dict_type` is the layout.
        accelerator: the `Accelerator` that has prepared the model.
        model_index: the number of the model, in the names of files.
        adapter_only: write the adapter of a PEFT model only.
        use_dcp: False writes shards into one file for each process, which only as many processes can load.
    """
    if fsdp_plugin.fsdp_version == 1:
        from accelerate.strategies.fsdp1 import files

        files.save_model(accelerator, model, Path(output_dir), model_index, adapters=adapter_only, dcp=use_dcp)
        return
    from accelerate.strategies.fsdp2.files import save_model

    by_shard = _by_shard(fsdp_plugin)
    save_model(accelerator, model, Path(output_dir), model_index, by_shard=by_shard, adapters=adapter_only, dcp=use_dcp)


def load_fsdp_model(
    fsdp_plugin: Plugin,
    accelerator: Any,
    model: torch.nn.Module,
    input_dir: Folder,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Load what `save_fsdp_model` wrote, in whichever layout; the plugin and `use_dcp` need not be as they were.

    Raises:
        ValueError: there are no weights, or those of another model.
    """
    if fsdp_plugin.fsdp_version == 1:
        from accelerate.strategies.fsdp1 import files

        files.load_model(accelerator, model, Path(input_dir), model_index, adapters=adapter_only)
        return
    from accelerate.strategies.fsdp2.files import load_model

    load_model(accelerator, model, Path(input_dir), model_index, adapters=adapter_only)


def save_fsdp_optimizer(
    fsdp_plugin: Plugin,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    output_dir: Folder,
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Write the state of an optimizer of sharded parameters; see `save_fsdp_model`."""
    if fsdp_plugin.fsdp_version == 1:
        from accelerate.strategies.fsdp1 import files

        files.save_optimizer(accelerator, optimizer, model, Path(output_dir), optimizer_index)
        return
    from accelerate.strategies.fsdp2.files import save_optimizer

    by_shard = _by_shard(fsdp_plugin)
    save_optimizer(accelerator, optimizer, model, Path(output_dir), optimizer_index, by_shard=by_shard, dcp=use_dcp)


def load_fsdp_optimizer(
    fsdp_plugin: Plugin,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    input_dir: Folder,
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Load what `save_fsdp_optimizer` wrote, in whichever layout.

    Args:
        adapter_only: without effect: an optimizer holds what it trains.

    Raises:
        ValueError: there is no state, or that of another optimizer.
    """
    if fsdp_plugin.fsdp_version == 1:
        from accelerate.strategies.fsdp1 import files

        files.load_optimizer(accelerator, optimizer, model, Path(input_dir), optimizer_index)
        return
    from accelerate.strategies.fsdp2.files import load_optimizer

    load_optimizer(accelerator, optimizer, model, Path(input_dir), optimizer_index)


def _by_shard(plugin: Plugin) -> bool:
    return plugin.state_dict_type.name != "FULL_STATE_DICT"


def _get_model_state_dict(model: torch.nn.Module, adapter_only: bool = False, sd_options: Any = None) -> dict[str, Any]:
    """Return the state of a sharded model.

    Args:
        adapter_only: of a PEFT model, that of its adapter.
        sd_options: torch's `StateDictOptions`; with `full_state_dict` the whole state, on rank 0 with `cpu_offload`.
    """
    from accelerate.strategies.fsdp2.files import state_of
    from accelerate.strategies.fsdp2.states import whole

    state = state_of(model, adapter_only)
    if sd_options is None or not sd_options.full_state_dict:
        return state
    import torch.distributed as dist

    return whole(state, keep=not (sd_options.cpu_offload and dist.is_initialized() and dist.get_rank() != 0))


def _set_model_state_dict(
    model: torch.nn.Module, state_dict: Mapping[str, Any], adapter_only: bool = False, sd_options: Any = None
) -> None:
    """Put a state, whole or by shard, into a sharded model.

    Args:
        adapter_only: the state is that of the adapter of a PEFT model.
        sd_options: torch's `StateDictOptions`; with `broadcast_from_rank0` the state is that of rank 0.
    """
    from accelerate.strategies.fsdp2.files import fill, state_of

    if sd_options is not None and not adapter_only:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        set_model_state_dict(model, dict(state_dict), options=sd_options)
    else:
        fill(state_of(model, adapter_only), state_dict)


def fsdp2_load_full_state_dict(
    accelerator: Any, model: torch.nn.Module, full_sd: Mapping[str, Any], cpu_offload: bool = False
) -> None:
    """Load the whole state that the main process has into a sharded model.

    Args:
        full_sd: the state on the main process; what the others pass is not looked at.
        cpu_offload: without effect: parameters stay where they are kept.
    """
    accelerator._strategy.load_state_dict(model, full_sd)


def fsdp2_prepare_auto_wrap_policy(
    fsdp2_plugin: Plugin, model: torch.nn.Module
) -> Callable[[torch.nn.Module], bool] | None:
    """Return the function that says which modules of `model` become units; None when only the whole model does."""
    from accelerate.strategies.fsdp2.units import ignored_modules_of, parameters_of, units_of

    fsdp2_plugin.set_auto_wrap_policy(model)
    if fsdp2_plugin.auto_wrap_policy is None:
        return None
    ignored = parameters_of(ignored_modules_of(model, fsdp2_plugin.ignored_modules))
    chosen = {module for unit in units_of(model, fsdp2_plugin.auto_wrap_policy, ignored).blocks for module in unit}
    return chosen.__contains__


def fsdp2_apply_ac(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Let the units of `model` compute their activations again in the backward pass; return `model`."""
    from accelerate.strategies.fsdp2.recompute import recompute

    plugin = accelerator.state.fsdp_plugin
    chosen = fsdp2_prepare_auto_wrap_policy(plugin, model)
    if chosen is not None:
        modules = [module for module in model.modules() if chosen(module)]
        recompute(modules, offload=plugin.activation_checkpointing_offload)
    return model


def fsdp2_canonicalize_names(named_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return named parameters under the names of the bare model."""
    from accelerate.strategies.relink import canonical_name

    return {canonical_name(name): parameter for name, parameter in named_params.items()}


def get_parameters_from_modules(
    modules: Iterable[torch.nn.Module] | str | None, model: torch.nn.Module, device: Any
) -> set[torch.nn.Parameter]:
    """Return the parameters of modules that FSDP leaves alone, with these modules on `device`.

    Args:
        modules: modules, or a regular expression over module names of `model`; None for none.
    """
    from accelerate.strategies.fsdp2.units import ignored_modules_of, parameters_of

    found = ignored_modules_of(model, modules)
    for module in found:
        module.to(device)
    return parameters_of(found)


def get_fsdp2_grad_scaler(**kwargs: Any) -> torch.amp.GradScaler:
    """Return a gradient scaler for sharded parameters: torch's own, which agrees over the ranks of their mesh."""
    import torch

    return torch.amp.GradScaler(**kwargs)


def fsdp2_switch_optimizer_parameters(optimizer: torch.optim.Optimizer, mapping: Mapping[int, Any]) -> None:
    """Point an optimizer at the parameters that have taken the place of those it holds.

    Args:
        optimizer: an optimizer, prepared or not.
        mapping: the new parameter for each old one, by the address of the old one's first element (`data_ptr`).

    Raises:
        KeyError: the optimizer holds a parameter that `mapping` doesn't have.
    """
    for group in optimizer.param_groups:
        addresses = [each.data_ptr() if callable(each.data_ptr) else each.data_ptr for each in group["params"]]
        missing = [number for number, address in enumerate(addresses) if address not in mapping]
        if missing:
            raise KeyError(
                message(
                    given=f"a mapping without parameter {missing[0]} of a group of {type(optimizer).__name__}",
                    why="the optimizer would go on with a parameter that no model has any more",
                    allowed="a new parameter for each old one, by its data_ptr()",
                    do="build the mapping from the model that the optimizer was built from",
                )
            )
        group["params"] = [mapping[address] for address in addresses]


def ensure_weights_retied(
    param_init_fn: Callable[[torch.nn.Module], Any], model: torch.nn.Module, device: Any
) -> Callable[[torch.nn.Module], None]:
    """Return a `param_init_fn` after which parameters that were one are one again.

    Args:
        param_init_fn: gives a module real parameters, each module its own.
        model: the model on the meta device, whose tied parameters are the same object.
        device: where what `param_init_fn` has left on the meta device goes, with values that mean nothing.
    """
    users: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                users.setdefault(id(parameter), []).append((module, name))
    tied = {place: places for places in users.values() if len(places) > 1 for place in places}
    made: dict[tuple[torch.nn.Module, str], Any] = {}

    def init(module: torch.nn.Module) -> None:
        param_init_fn(module)
        if any(each is not None and each.is_meta for each in module._parameters.values()):
            module.to_empty(device=device, recurse=False)
        for name in module._parameters:
            for place in tied.get((module, name), ()):
                module._parameters[name] = made.setdefault(place, module._parameters[name])

    return init
