"""How parameters, gradients and optimizer states are sharded over processes: :class:`FullyShardedDataParallelPlugin`.

Every setting is declared once, for the flag, the config file, the environment and the argument; what it means in
torch's terms is in `fsdp_terms`. Strategies read the fields when they prepare a model, so that a plugin may be changed
until then.
"""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from accelerate.base.constants import (
    FSDP_AUTO_WRAP_POLICY,
    FSDP_BACKWARD_PREFETCH,
    FSDP_SHARDING_STRATEGY,
    FSDP_STATE_DICT_TYPE,
)
from accelerate.base.environ import write
from accelerate.config import fsdp_terms as terms
from accelerate.config.enums import DistributedType
from accelerate.config.option import Boolean, Choice, Integer, Kind, Listing, Text, option, options
from accelerate.config.resolve import resolve

if TYPE_CHECKING:
    import torch

GROUP = "FSDP Arguments"
#: The variable that says, to transformers too, that only the main process reads weights.
RAM_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"
VALUE = Boolean(switch=False)


def named(names: Iterable[str]) -> Choice:
    """Return the choice among names, or the numbers that torch's enums give them: their positions, from 1."""
    listed = tuple(names)
    return Choice(listed, meanings={str(number): name.lower() for number, name in enumerate(listed, 1)})


class Reshard(Kind):
    """Whether parameters are freed after a forward pass: yes or no, or the name of a strategy of the first version."""

    strategies = named(FSDP_SHARDING_STRATEGY)

    def parse(self, value: Any) -> bool | str:
        # A number that isn't a truth value is torch's for a strategy; 1 and 0 could be either, and are truth values.
        try:
            return VALUE.parse(value)
        except ValueError:
            strategy: str = self.strategies.parse(value)
            return strategy

    @property
    def allowed(self) -> str:
        return f"true or false; with version 1 one of {self.strategies.allowed}"

    def format(self, value: Any) -> str:
        return VALUE.format(value) if isinstance(value, bool) else self.strategies.format(value)

    def advice(self, value: Any) -> str:
        return self.strategies.advice(value)


def setting(name: str, kind: Kind, help: str, *, env: str | None = None, **facts: Any) -> Any:
    """Return a field whose flag, key and variable are made of `name`."""
    return option(
        None,
        kind=kind,
        flag=f"--fsdp_{name}",
        yaml=f"fsdp_config.fsdp_{name}",
        env=env or f"FSDP_{name.upper()}",
        group=GROUP,
        help=help,
        when=facts.pop("when", _sharded),
        **facts,
    )


def _sharded(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for FSDP."""
    return answers.get("distributed_type") == DistributedType.FSDP


def _version(number: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether the answers so far ask for FSDP of this version."""
    return lambda answers: _sharded(answers) and answers.get("fsdp_version", 1) == number


def _wrapping(policy: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether the answers so far ask for FSDP with this policy."""
    return lambda answers: _sharded(answers) and answers.get("fsdp_auto_wrap_policy") == policy


@dataclass
class FullyShardedDataParallelPlugin:
    """The settings of FSDP; what is None comes from FSDP_*, then from the default.

    Args:
        fsdp_version: 1 is `FullyShardedDataParallel`, 2 is `fully_shard`.
        sharding_strategy: version 1: a `ShardingStrategy`, its name or number.
        reshard_after_forward: version 2: free gathered parameters after the forward pass, which saves memory, or keep
            them for the backward pass; version 1: another name of `sharding_strategy`.
        backward_prefetch: version 1: when the parameters of the next unit are gathered in a backward pass.
        mixed_precision_policy: a `MixedPrecision` (version 1) or `MixedPrecisionPolicy` (version 2), the name of a
            precision, or a dictionary with the dtypes; made from the run's precision when None.
        auto_wrap_policy: which modules are units: the name of a policy, or a function as torch takes it.
        cpu_offload: keep parameters, gradients and optimizer states in host memory.
        ignored_modules: modules to leave alone, or a regular expression over their names.
        state_dict_type: how checkpoints are laid out.
        state_dict_config, optim_state_dict_config: version 1: torch's settings of `state_dict_type`.
        limit_all_gathers: version 1: gather no more than two units ahead.
        use_orig_params: version 1: keep parameters as they are, so that they can have different optimizer settings.
        param_init_fn: materialises a module on the meta device.
        sync_module_states: version 1: begin with the weights of the main process.
        forward_prefetch: version 1: gather the next unit before a forward pass needs it.
        activation_checkpointing: compute the activations of units again in the backward pass instead of keeping them.
        activation_checkpointing_offload: version 2: keep what is needed for that in host memory.
        cpu_ram_efficient_loading: only the main process reads weights, and sends the others theirs.
        transformer_cls_names_to_wrap: the names of the classes that TRANSFORMER_BASED_WRAP makes units of; by default
            those that the model says may not be split.
        min_num_params: the size from which SIZE_BASED_WRAP makes a unit.

    Raises:
        ValueError: a value that isn't allowed, or not in this version.
    """

    fsdp_version: int = setting(
        "version",
        Choice(("1", "2"), int),
        "Which FSDP of torch: 1 is FullyShardedDataParallel, 2 is fully_shard.",
        fallback=1,
        ask="Which version of FSDP do you want to use?",
        suggest=2,
    )
    sharding_strategy: Any = setting("sharding_strategy", named(FSDP_SHARDING_STRATEGY), "Version 1: what is sharded.")
    reshard_after_forward: Any = setting(
        "reshard_after_forward",
        Reshard(),
        "Version 2: free parameters after the forward pass (true), or keep them for the backward pass (false); "
        "version 1: what is sharded.",
        ask="Should parameters be freed after the forward pass (true saves memory, false communication)?",
        suggest=True,
        when=_version(2),
    )
    backward_prefetch: Any = setting(
        "backward_prefetch", named(FSDP_BACKWARD_PREFETCH), "Version 1: when the next unit is gathered backward."
    )
    mixed_precision_policy: Any = None
    auto_wrap_policy: Any = setting(
        "auto_wrap_policy",
        Choice(tuple(FSDP_AUTO_WRAP_POLICY)),
        "What becomes a unit that is gathered by itself.",
        ask="What should become a unit that is gathered by itself?",
        suggest="TRANSFORMER_BASED_WRAP",
    )
    cpu_offload: Any = setting(
        "offload_params",
        VALUE,
        "Keep parameters, gradients and optimizer states in host memory.",
        fallback=False,
        ask="Do you want to keep parameters and gradients in host memory?",
    )
    ignored_modules: Any = setting("ignored_modules", Text(), "Leave modules alone whose names match this expression.")
    state_dict_type: Any = setting(
        "state_dict_type",
        named(FSDP_STATE_DICT_TYPE),
        "How checkpoints are laid out: whole, or by shard.",
        ask="How should checkpoints be laid out?",
        suggest="SHARDED_STATE_DICT",
    )
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = setting(
        "use_orig_params", VALUE, "Version 1: keep parameters as they are; needed for several parameter groups."
    )
    param_init_fn: Callable[[torch.nn.Module], None] | None = None
    sync_module_states: bool | None = setting(
        "sync_module_states", VALUE, "Version 1: begin with the weights of the main process."
    )
    forward_prefetch: bool | None = setting(
        "forward_prefetch", VALUE, "Version 1: gather the next unit before the forward pass needs it."
    )
    activation_checkpointing: bool = setting(
        "activation_checkpointing",
        VALUE,
        "Compute activations again in the backward pass instead of keeping them.",
        fallback=False,
        ask="Do you want to compute activations again in the backward pass, to save memory?",
    )
    activation_checkpointing_offload: bool = setting(
        "activation_checkpointing_offload",
        VALUE,
        "Version 2: keep in host memory what activation checkpointing needs.",
        fallback=False,
    )
    cpu_ram_efficient_loading: bool = setting(
        "cpu_ram_efficient_loading",
        VALUE,
        "Only the main process reads weights, and sends the others theirs.",
        fallback=False,
        ask="Should only the main process read weights, and send the others theirs?",
    )
    transformer_cls_names_to_wrap: list[str] | None = setting(
        "transformer_layer_cls_to_wrap",
        Listing(Text()),
        "The classes that TRANSFORMER_BASED_WRAP makes units of; by default those that may not be split.",
        env="FSDP_TRANSFORMER_CLS_TO_WRAP",
        ask="Which classes should become units (names with commas between them; empty: what the model says)?",
        when=_wrapping("TRANSFORMER_BASED_WRAP"),
    )
    min_num_params: int | None = setting(
        "min_num_params",
        Integer(0),
        "How many parameters make a unit with SIZE_BASED_WRAP.",
        ask="How many parameters should make a unit?",
        when=_wrapping("SIZE_BASED_WRAP"),
        suggest=100_000_000,
    )

    def __post_init__(self) -> None:
        loading = self.cpu_ram_efficient_loading
        for name, declared in options(FullyShardedDataParallelPlugin).items():
            value = getattr(self, name)
            if value is None or isinstance(value, str | int | Enum):  # the others are torch's terms already
                setattr(self, name, resolve(declared, value))
        if loading is not None:
            write(RAM_EFFICIENT, str(self.cpu_ram_efficient_loading))
        terms.check(self)
        terms.settle(self)
        self.set_state_dict_type()
        self.set_cpu_offload()
        if self.mixed_precision_policy is not None:
            self.validate_mixed_precision_policy()

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Lay checkpoints out in another way: a `StateDictType` or its name; without one, as the field says."""
        terms.set_state_dict_type(self, state_dict_type)

    def set_auto_wrap_policy(self, model: torch.nn.Module) -> None:
        """Complete the policy with the classes of `model`; harmless when repeated.

        Raises:
            ValueError: `transformer_cls_names_to_wrap` names a class that the model doesn't have.
        """
        terms.set_auto_wrap_policy(self, model)

    def set_mixed_precision(self, mixed_precision: Any, buffer_autocast: bool = False, override: bool = False) -> None:
        """Fill the mixed precision policy from the name of a precision or a dtype.

        Args:
            mixed_precision: "bf16", "fp16", "fp32", "fp8" (which computes like "bf16" here), or a dtype.
            buffer_autocast: version 1: keep buffers in fp32.
            override: replace a policy that is there.

        Raises:
            ValueError: another precision.
        """
        if self.mixed_precision_policy is None or override:
            self.mixed_precision_policy = terms.policy_of(self, mixed_precision, buffer_autocast)

    def validate_mixed_precision_policy(self) -> None:
        """Turn a policy that is a name or a dictionary into torch's, and refuse what can't be one.

        Raises:
            ValueError: it can't be one of this version.
        """
        self.mixed_precision_policy = terms.checked_policy(self)

    def set_cpu_offload(self) -> None:
        """Turn `cpu_offload` into torch's policy of this version."""
        terms.set_cpu_offload(self)

    def validate_cpu_offload(self) -> None:
        """Refuse an offload policy of the other version.

        Raises:
            ValueError: it is one.
        """
        terms.validate_cpu_offload(self)
