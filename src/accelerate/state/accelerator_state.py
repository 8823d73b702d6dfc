"""What all `Accelerator` objects of a process share: the facts of `PartialState`, the precision and the plugins.

It copies what `PartialState` knows when the first `Accelerator` is built, and from then on has a dictionary of its own.
The plugins of a mode are attributes only while that mode is on, so that other code can ask with `getattr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from accelerate.base.messages import did_you_mean, message, warn_once
from accelerate.config.enums import DistributedType, DynamoBackend
from accelerate.config.resolve import setting
from accelerate.state.borg import SharedDict
from accelerate.state.partial import PartialState
from accelerate.state.process_state import ProcessState

if TYPE_CHECKING:
    from accelerate.config.dynamo import TorchDynamoPlugin

#: Attributes that exist only in the mode that uses them, with its label.
OF_A_MODE = {"fsdp_plugin": DistributedType.FSDP, "megatron_lm_plugin": DistributedType.MEGATRON_LM}


class AcceleratorState(ProcessState):
    """The state behind every `Accelerator`; called without arguments it shows what they run with.

    Args:
        mixed_precision: what to compute in; by default ACCELERATE_MIXED_PRECISION, else "no".
        cpu: use the CPU although there is an accelerator.
        dynamo_plugin: how models are compiled.
        deepspeed_plugin: one plugin, or a dictionary of them of which the first is selected.
        fsdp_plugin, megatron_lm_plugin: the plugin of the mode that is on; None leaves the attribute out.
        torch_tp_plugin, parallelism_config: how models are laid out on a device mesh.
        kwargs: settings of the process group, as for `PartialState`.

    Raises:
        ValueError: no `Accelerator` has been built yet, or what is asked contradicts what is set.
    """

    _shared_state = SharedDict()
    _known_attrs: ClassVar[list[str]] = [
        *ProcessState._known_attrs,
        "deepspeed_plugins",
        "device_mesh",
        "dynamo_plugin",
        "parallelism_config",
        "torch_tp_plugin",
        *OF_A_MODE,
    ]

    _mixed_precision: str
    deepspeed_plugins: dict[str, Any] | None
    device_mesh: Any
    dynamo_plugin: TorchDynamoPlugin | None
    parallelism_config: Any
    torch_tp_plugin: Any
    fsdp_plugin: Any
    megatron_lm_plugin: Any

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: Any = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        asked = {
            "dynamo_plugin": dynamo_plugin,
            "deepspeed_plugins": _by_name(deepspeed_plugin),
            "torch_tp_plugin": torch_tp_plugin,
            "parallelism_config": parallelism_config,
            "fsdp_plugin": fsdp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
        }
        if self.initialized:
            self._check_initialized(mixed_precision, cpu)
            _warn_of_other_plugins(self, asked)
            return
        if not _from_accelerator:
            raise ValueError(_no_accelerator())
        if PartialState._shared_state:
            _check_device(PartialState(), setting("use_cpu", cpu or None))
        PartialState(cpu, **kwargs)
        self.__dict__.update(PartialState._shared_state)
        self.__dict__.update(
            {name: plugin for name, plugin in asked.items() if plugin is not None or name not in OF_A_MODE},
            device_mesh=None,
            _mixed_precision=setting("mixed_precision", _precision(mixed_precision)),
        )
        if self.deepspeed_plugins is not None:
            self.select_deepspeed_plugin(next(iter(self.deepspeed_plugins)))

    def __repr__(self) -> str:
        text = super().__repr__()
        if self.initialized:
            text += f"\nMixed precision type: {self.mixed_precision}\n"
            if self.deepspeed_plugins is not None:
                text += f"ds_config: {self.deepspeed_plugin.deepspeed_config}\n"
        return text

    def _check_initialized(self, mixed_precision: str | None = None, cpu: bool | None = None) -> None:
        """Refuse a device or precision other than those that are set; the same, or none, is fine."""
        _check_device(self, bool(cpu))
        asked = _precision(mixed_precision)
        if asked is not None and asked != self._mixed_precision and self.deepspeed_plugins is None:
            raise ValueError(_already("mixed_precision", asked, self._mixed_precision))

    def set_distributed_type(self, distributed_type: DistributedType) -> None:
        """Show the label of the chosen strategy, here and on `PartialState`, and no plugin of another mode."""
        self.distributed_type = distributed_type
        for name in [name for name, label in OF_A_MODE.items() if label != distributed_type]:
            self.__dict__.pop(name, None)
        PartialState._shared_state["distributed_type"] = distributed_type

    @property
    def mixed_precision(self) -> str:
        """What is computed in: "no", "fp16", "bf16" or "fp8"; under DeepSpeed, what its configuration enables."""
        plugin = self.deepspeed_plugin
        if plugin is None:
            return self._mixed_precision
        config = plugin.deepspeed_config
        enabled = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled", False)]
        return enabled[0] if enabled else "no"

    @property
    def fork_launched(self) -> bool:  # type: ignore[override]
        """Whether a launcher forked this process, and ends its process group."""
        return self.__dict__.get("fork_launched", False)

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by FSDP in its second version."""
        return getattr(self.__dict__.get("fsdp_plugin"), "fsdp_version", 1) == 2

    @property
    def deepspeed_plugin(self) -> Any:
        """The selected DeepSpeed plugin, or None when DeepSpeed is off."""
        if self.deepspeed_plugins is None:
            return None
        return next(plugin for plugin in self.deepspeed_plugins.values() if plugin.selected)

    def get_deepspeed_plugin(self, name: str) -> Any:
        """Return the DeepSpeed plugin called `name`.

        Raises:
            ValueError: DeepSpeed is off, or there is no such plugin.
        """
        plugins = self.deepspeed_plugins
        if plugins is None or name not in plugins:
            raise ValueError(_no_deepspeed_plugin(name, plugins))
        return plugins[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Make the DeepSpeed plugin called `name` the one that `prepare` uses from now on.

        Raises:
            ValueError: DeepSpeed is off, or there is no such plugin.
        """
        chosen = self.get_deepspeed_plugin(str(name))
        for plugin in (self.deepspeed_plugins or {}).values():
            plugin._unselect()
        chosen.select(_from_accelerator_state=True)

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Empty the state, and `PartialState` with it when `reset_partial_state`."""
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()


@contextmanager
def undone_on_error() -> Iterator[None]:
    """Forget a state that the body built before it raised, so that a corrected second try starts afresh."""
    existed = is_initialized()
    try:
        yield
    except BaseException:
        if not existed:
            AcceleratorState._reset_state()
        raise


def is_initialized() -> bool:
    """Return whether an `Accelerator` has been built."""
    return AcceleratorState._shared_state != {}


def _precision(name: object | None) -> str | None:
    """Return a precision as it is stored: lower case text; None stays None."""
    return None if name is None else str(name).lower()


def _by_name(plugin: Any) -> dict[str, Any] | None:
    """Return DeepSpeed plugins as a dictionary; one alone is called "default"."""
    if plugin is None:
        return None
    return dict(plugin) if isinstance(plugin, Mapping) else {"default": plugin}


def _check_device(state: ProcessState, cpu: bool) -> None:
    """Refuse `cpu=True` on a state that computes elsewhere."""
    if cpu and state.device.type != "cpu":
        raise ValueError(_already("cpu", True, f"device {state.device}"))


def _warn_of_other_plugins(state: AcceleratorState, asked: dict[str, Any]) -> None:
    """Say which plugins of a further `Accelerator` have no effect because the first one decided."""
    for name, plugin in asked.items():
        idle = plugin is None or getattr(plugin, "backend", None) == DynamoBackend.NO
        if not idle and plugin != state.__dict__.get(name):
            warn_once(
                f"The {name} of this Accelerator has no effect: all Accelerators of a process share the state of the "
                "first one, which was built with another. Call AcceleratorState._reset_state() before to start over.",
                stacklevel=4,
            )


def _already(name: str, asked: object, held: str) -> str:
    """Return the error for a second `Accelerator` that contradicts the first."""
    return message(
        given=f"Accelerator({name}={asked!r})",
        why=f"an earlier Accelerator of this process was built with {held}, which all of them share",
        allowed=f"an Accelerator without `{name}`, or with the value that is set",
        do="build one Accelerator with all it needs, or call AcceleratorState._reset_state(True) before this one",
    )


def _no_accelerator() -> str:
    """Return the error for a state that is asked for before there is anything to show."""
    return message(
        given="AcceleratorState() before any Accelerator",
        why="an Accelerator decides precision and plugins, and none has been built",
        allowed="AcceleratorState() after `accelerator = Accelerator()`, or PartialState() at any time",
        do="write `accelerator = Accelerator()` before asking for its state",
    )


def _no_deepspeed_plugin(name: str, plugins: Mapping[str, Any] | None) -> str:
    """Return the error for a DeepSpeed plugin that isn't there."""
    if plugins is None:
        why, allowed, do = (
            "DeepSpeed is not enabled",
            "plugins of an Accelerator that uses DeepSpeed",
            "pass `deepspeed_plugin` to `Accelerator`, or launch with --use_deepspeed",
        )
    else:
        why, allowed, do = "there is no plugin of that name", ", ".join(plugins), did_you_mean(name, plugins)
    return message(given=f"DeepSpeed plugin {name!r}", why=why, allowed=allowed, do=do)
