"""What a device map means for a model: where each part runs, which weights are brought in, and where they are kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.loading import all_places
from accelerate.big_modeling.offloaded import OffloadedWeightsLoader
from accelerate.big_modeling.settings import OffloadSettings
from accelerate.big_modeling.store import Index, existing_index, offload_state_dict
from accelerate.big_modeling.tied import find_tied_parameters, placed_by
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.hooks.placement import TiedTensors
from accelerate.hooks.tensors import as_device, state_names
from accelerate.hooks.weights import PrefixedDataset

#: Kinds of devices that run from the memory of the CPU, so that weights there need not be brought in.
HOST = ("cpu", "mps")


class PlacementPlan:
    """A device map, applied to a model.

    Args:
        model: the model.
        device_map: devices by name of modules or tensors; it covers the model.
        main_device: where offloaded parts run; by default the first device of the map that is no place to keep weights.
        offload_buffers: whether buffers are offloaded too.
    """

    def __init__(
        self, model: torch.nn.Module, device_map: Mapping[str, Any], main_device: Any, offload_buffers: bool
    ) -> None:
        self.model = model
        self.device_map = device_map
        self.offload_buffers = offload_buffers
        if main_device is None:
            main_device = next((each for each in device_map.values() if each not in ("cpu", "disk")), "cpu")
        self.main = main_device
        self.kept = {"disk"} if as_device(main_device).type in HOST else {"cpu", "disk"}
        self.places = dict(all_places(model))
        modules = dict(model.named_modules(remove_duplicate=False))
        named = {name: device for name, device in device_map.items() if name in modules}
        #: Where each part runs, and whether its weights are brought in.
        self.execution = {name: self.main if device in self.kept else device for name, device in named.items()}
        self.offload = {name: device in self.kept for name, device in named.items()}
        self.modules = modules
        self.ties = find_tied_parameters(model)
        self.single = self._modules_placed_by_tensor()
        if "" not in self.single:  # the inputs of the model go to where offloaded parts run
            self.execution.setdefault("", self.main)

    def _modules_placed_by_tensor(self) -> dict[str, list[str]]:
        """Return, for modules some of whose own tensors the map names, the names of all their own tensors."""
        owners = {name.rpartition(".")[0] for name in self.device_map if name in self.places}
        found: dict[str, list[str]] = {owner: [] for owner in owners}
        for name in self.places:
            if name.rpartition(".")[0] in owners:
                found[name.rpartition(".")[0]].append(name)
        return found

    def weights(
        self,
        state_dict: Mapping[str, torch.Tensor] | None,
        offload_dir: str | os.PathLike[str] | None,
        offload_index: Index | None,
        settings: OffloadSettings | None,
    ) -> OffloadedWeightsLoader | None:
        """Return the weights that are brought in; None if there are none.

        Raises:
            ValueError: some have no content, or nowhere to be.
        """
        on_host, on_disk = self._names_kept("cpu"), self._names_kept("disk")
        if not on_host and not on_disk:
            return None
        if on_disk and offload_dir is None and offload_index is None:
            raise ValueError(_no_folder([name for name, device in self.device_map.items() if device == "disk"]))
        host = {name: tensor.to("cpu") for name, tensor in self._content(on_host, state_dict).items()}
        if on_disk and offload_index is None and offload_dir is not None:
            fill_folder(offload_dir, self._content(on_disk, None))
        index = existing_index(offload_dir) if offload_index is None and on_disk else offload_index
        loader = OffloadedWeightsLoader(host, offload_dir if on_disk else None, index or {}, settings=settings)
        loader.tie(self.ties)
        self._check_complete(loader, [*on_host, *on_disk])
        return loader

    def _names_kept(self, where: str) -> list[str]:
        """Return the names of the tensors that are kept on the CPU, or on the disk, while they are not in use."""
        mixed = {name for owner, names in self.single.items() if self._is_mixed(owner) for name in names}
        kept = []
        for name in dict.fromkeys(state_names(self.model)):
            device = placed_by(self.device_map, name)
            if device not in self.kept and name in mixed:
                device = "cpu"
            if device == where and (where in self.kept or name in mixed):
                kept.append(name)
        return kept

    def _is_mixed(self, owner: str) -> bool:
        """Whether the tensors of a module itself are on several devices, or kept somewhere."""
        devices = {placed_by(self.device_map, name) for name in self.single[owner]}
        return len(devices) > 1 or bool(devices & self.kept)

    def _content(self, names: Iterable[str], given: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        """Return those of the named tensors that have content."""
        found = {}
        for name in names:
            store, key, _ = self.places[name]
            tensor = given[name] if given is not None and name in given else store[key]
            if not tensor.is_meta:
                found[name] = tensor.detach() if tensor.requires_grad else tensor
        return found

    def _check_complete(self, loader: OffloadedWeightsLoader, names: Iterable[str]) -> None:
        """Refuse to put hooks on a model whose weights are not all there."""
        needed = (name for name in names if self.offload_buffers or not self.places[name][2])
        missing = [name for name in needed if name not in loader]
        if missing:
            raise ValueError(
                message(
                    given=f"a device_map that offloads {', '.join(missing)}",
                    why="these weights are neither in the model (they are on meta) nor in what was passed for them",
                    allowed="weights in the model, in `state_dict`, in `offload_index` or the index of `offload_dir`",
                    do="load the checkpoint first, or use `load_checkpoint_and_dispatch`",
                )
            )

    def tied_storages(self) -> TiedTensors:
        """Return an entry for the storage of each parameter with several names."""
        first = (self.places[group[0]] for group in self.ties)
        tensors = (store[key] for store, key, _ in first)
        return {tensor.data_ptr(): {} for tensor in tensors if not tensor.is_meta}

    def attach_to_single_tensors(self, options: Mapping[str, Any]) -> None:
        """Put hooks on the modules whose own tensors the map names one by one, when those of blocks are on."""
        for owner, names in self.single.items():
            devices = [placed_by(self.device_map, name) for name in names]
            runs_on = next((device for device in devices if device not in self.kept), self.main)
            prefix = f"{owner}." if owner else ""
            weights = options["weights_map"]
            offload = self._is_mixed(owner)
            hook = AlignDevicesHook(
                execution_device=runs_on,
                offload=offload,
                io_same_device=owner == "",
                weights_map=PrefixedDataset(weights, prefix) if offload else None,
                **{name: value for name, value in options.items() if name != "weights_map"},
            )
            add_hook_to_module(self.modules[owner], hook)

    def share_resident(self, loader: OffloadedWeightsLoader | None) -> None:
        """Let weights that are brought in be taken from a resident parameter that they are tied to."""
        if loader is None:
            return
        for group in self.ties:
            resident = [name for name in group if placed_by(self.device_map, name) not in self.kept]
            for name in group:
                if name not in resident:
                    loader.share(name, [self.places[each][:2] for each in resident])


def fill_folder(folder: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write weights to an offload folder, but for those that are in its index already."""
    known = existing_index(folder)
    offload_state_dict(folder, {name: tensor for name, tensor in tensors.items() if name not in known})


def _no_folder(names: list[str]) -> str:
    return message(
        given="a device_map with 'disk', and neither an `offload_dir` nor an `offload_index`",
        why=f"these go to the disk, and nothing says where: {', '.join(names)}",
        allowed="a folder that can be written to, or an index that says where the weights are",
        do="pass `offload_dir=`, or give the other devices enough memory",
    )
