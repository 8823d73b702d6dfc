"""The parts of a model that runs as a pipeline, each of which hands on what later ones need.

A stage of `torch.distributed.pipelining` talks to its neighbours only. So a part passes through what parts beyond the
next one need, and what goes into the whole model is given to all parts rather than sent along. The modules in a part
are those of the model itself: what is done to a part is done to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelerate.base.messages import message
from accelerate.checkpointing.tensors import local_of
from accelerate.strategies.axes.outline import CALL, Call

SPLIT = torch.ops.pippy._pipe_split.default
#: Statements about shapes and dtypes of a traced run, which was in another precision than the runs to come.
STATEMENTS = (torch.ops.aten._assert_tensor_metadata.default,)


class Called(torch.nn.Module):
    """A module of the model as it is called in one place: tensors in, tensors out.

    Args:
        module: the module.
        call: what it is given and gives beside tensors.
    """

    def __init__(self, module: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self.given = call.given

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self.given.filled(tensors)
        found = self.module(*args, **kwargs)
        if isinstance(found, torch.Tensor):
            return [found]
        return [each for each in torch.utils._pytree.tree_leaves(found) if isinstance(each, torch.Tensor)]


class Beside(torch.nn.Module):
    """The tensors that a part uses itself, rather than a module in it: the model's own, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[str, tuple[torch.nn.Module, str]] = {}

    def add(self, owner: torch.nn.Module, key: str, name: str) -> str:
        """Take in the tensor `key` of `owner`, called `name` in the traced model; return what it is called here."""
        mine = name.replace(".", "__")
        if mine not in self.owners:
            _refuse_divided(getattr(owner, key), name)
            self.owners[mine] = owner, key
            kind = self._parameters if key in owner._parameters else self._buffers
            kind[mine] = getattr(owner, key)
        return mine

    def give_back(self) -> None:
        """Let the model have what has become of these tensors, such as a shard of one."""
        for mine, (owner, key) in self.owners.items():
            kind: Any = "_parameters" if key in owner._parameters else "_buffers"
            if key in getattr(owner, kind):
                getattr(owner, kind)[key] = getattr(self, kind)[mine]

    def tensors(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Return tensors as a computation takes them: what every rank of a mesh has as a whole is a plain tensor."""
        return [local_of(getattr(self, name)) for name in names]


def _refuse_divided(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor of which this rank has a part, where the whole is computed with.

    Raises:
        NotImplementedError: it is one.
    """
    if isinstance(tensor, DTensor) and not all(each.is_replicate() for each in tensor.placements):
        raise NotImplementedError(
            message(
                given=f"a pipeline that uses the divided parameter {name} outside of its module",
                why="only the module knows how to compute with a part of it",
                allowed="divided parameters that their own modules compute with",
                do="leave this module out of the plan; or, where blocks hand on a cache, pass use_cache=False",
            )
        )


@dataclass
class Body:
    """What one part computes in training, or in evaluation.

    Args:
        run: computes it.
        inputs: which inputs of the model it takes, after what comes from the part before.
        beside: which tensors of its own come after them.
    """

    run: torch.nn.Module
    inputs: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


class Part(torch.nn.Module):
    """One part of a model.

    Args:
        number: which part it is.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.runs = torch.nn.ModuleDict()
        self.beside = Beside()
        self.bodies: dict[bool, Body] = {}
        #: The precision in which it computes.
        self.context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def add(self, body: Body, training: bool) -> None:
        """Take in what it computes in training, or in evaluation."""
        self.bodies[training] = body
        self.runs["of_training" if training else "of_evaluation"] = body.run

    def forward(self, *received: torch.Tensor, **inputs: torch.Tensor) -> Any:
        body = self.bodies[self.training]
        with self.context():
            return body.run(*received, *(inputs[name] for name in body.inputs), *self.beside.tensors(body.beside))


class Cut:
    """A traced model, cut where its parts begin.

    Args:
        traced: the graph of a model with its loss, see `Outline.trace`.
        calls: the calls of modules in it.
        model: the model.
        prefix: what stands before the names of the model's tensors in the graph.
    """

    def __init__(
        self, traced: torch.fx.GraphModule, calls: Sequence[Call], model: torch.nn.Module, prefix: str
    ) -> None:
        self.traced, self.model, self.prefix = traced, model, prefix
        for graph in [each for each in traced.modules() if isinstance(each, torch.fx.GraphModule)]:
            _call_modules(graph, calls, model)
        nodes = list(traced.graph.nodes)
        self.inputs = {each: f"input_{number}" for number, each in enumerate(_of(nodes, "placeholder"))}
        #: The part that a node is in; inputs and tensors of the model are in none.
        self.part_of: dict[torch.fx.Node, int] = {}
        part = 0
        for node in nodes:
            part += node.target is SPLIT
            if node.op in ("call_function", "call_module") and node.target is not SPLIT:
                self.part_of[node] = part
        self.count = part + 1
        results: Any = _of(nodes, "output")[0].args[0]
        self.result: torch.fx.Node = results[0]

    def body(self, number: int, part: Part, device: torch.device) -> Body:
        """Return what one part computes; tensors that it uses itself are added to `part.beside`."""
        graph, known = torch.fx.Graph(), {}
        received = self._across(number - 1)
        for place, node in enumerate(received):
            known[node] = graph.placeholder(f"received_{place}")
        own = [node for node, where in self.part_of.items() if where == number]
        used = dict.fromkeys(each for node in own for each in node.all_input_nodes)
        if number == self.count - 1:
            used[self.result] = None
        body = Body(torch.nn.Module())
        for node in [each for each in used if each in self.inputs]:
            known[node] = graph.placeholder(self.inputs[node])
            body.inputs.append(self.inputs[node])
        for node in [each for each in used if each.op == "get_attr"]:
            known[node] = self._attribute(node, graph, part, body, device)
        for node in own:
            known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(known[self.result] if number == self.count - 1 else self._handed_on(number, graph, known))
        body.run = torch.fx.GraphModule(self._modules(own), graph)
        _move(body.run, device)
        return body

    def _across(self, number: int) -> list[torch.fx.Node]:
        """Return the values that go from one part, or through it, to later ones."""
        wanted = {each for node, where in self.part_of.items() if where > number for each in node.all_input_nodes}
        wanted |= {self.result} if number < self.count - 1 else set()
        return [node for node, where in self.part_of.items() if where <= number and node in wanted]

    def _handed_on(self, number: int, graph: torch.fx.Graph, known: dict[Any, Any]) -> tuple[torch.fx.Node, ...]:
        return tuple(
            graph.call_method("contiguous" if self.part_of[node] == number else "clone", (known[node],))
            for node in self._across(number)
        )

    def _attribute(
        self, node: torch.fx.Node, graph: torch.fx.Graph, part: Part, body: Body, device: torch.device
    ) -> torch.fx.Node:
        """Return what stands in a part for a tensor of the traced model, or for a part of its code."""
        name = str(node.target)
        path, _, key = name.removeprefix(self.prefix).rpartition(".")
        is_own = name.startswith(self.prefix) and hasattr(self.model.get_submodule(path), key)
        owner = self.model.get_submodule(path) if is_own else self.traced.get_submodule(name.rpartition(".")[0])
        if isinstance(getattr(owner, key), torch.nn.Module):
            return graph.get_attr(name)
        if not is_own:
            setattr(owner, key, getattr(owner, key).to(device))
        mine = part.beside.add(owner, key, name)
        body.beside.append(mine)
        return graph.placeholder(mine)

    def _modules(self, nodes: Sequence[torch.fx.Node]) -> dict[str, Any]:
        """Return what a part calls, by the names in the traced model."""
        codes = [each for node in nodes for each in node.all_input_nodes if each.op == "get_attr"]
        names = [str(node.target) for node in (*codes, *nodes) if node.op in ("get_attr", "call_module")]
        found = {name: _attribute_of(self.traced, name) for name in names}
        return {name: each for name, each in found.items() if isinstance(each, torch.nn.Module)}


def _call_modules(traced: torch.fx.GraphModule, calls: Sequence[Call], model: torch.nn.Module) -> None:
    """Let a traced model call the modules of `model` where operations stand for them."""
    graph = traced.graph
    for node in list(graph.nodes):
        if node.target in STATEMENTS or node.op == "call_module":  # the latter checks shapes of inputs
            graph.erase_node(node)
        elif node.target is CALL:
            name = f"call_{node.args[1]}"
            traced.add_module(name, Called(model.get_submodule(calls[node.args[1]].name), calls[node.args[1]]))
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.call_module(name, node.args[:1]))
            graph.erase_node(node)
    traced.recompile()


def _of(nodes: Sequence[torch.fx.Node], kind: str) -> list[torch.fx.Node]:
    return [node for node in nodes if node.op == kind]


def _attribute_of(module: torch.nn.Module, name: str) -> Any:
    path, _, key = name.rpartition(".")
    return getattr(module.get_submodule(path), key)


def _move(module: torch.nn.Module, device: torch.device) -> None:
    """Let all that a graph makes be made on `device`."""
    for graph in [each for each in (module, *module.children()) if isinstance(each, torch.fx.GraphModule)]:
        for node in graph.graph.nodes:
            if node.op == "call_function" and "device" in node.kwargs:
                node.update_kwarg("device", device)
        graph.recompile()
