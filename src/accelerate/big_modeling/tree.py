"""A model as the planner sees it: a tree of the parts that can be placed, with their sizes, built in one walk.

Nodes are numbered in the order of definition, so that what lies inside a module is a range of numbers, and a question
about it costs no comparison of names. What can't be split is one node, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

SizeOf = Callable[[str, torch.Tensor], "int | float"]


class Node:
    """A module, or a parameter or buffer.

    Args:
        name: its full name.
        kind: the name of its class; empty for a tensor.
        parent: the module that it is in.
        start: its number.
    """

    __slots__ = ("buffers", "children", "end", "kind", "name", "parent", "queued", "size", "start", "whole")

    def __init__(self, name: str, kind: str, parent: Node | None, start: int) -> None:
        self.name = name
        self.kind = kind
        self.parent = parent
        #: It and what is inside have the numbers from `start` up to `end`, which is excluded.
        self.start = start
        self.end = start + 1
        self.size: int | float = 0
        #: The bytes of buffers among them.
        self.buffers: int | float = 0
        self.children: list[Node] = []
        #: Whether it can't be split: it is a tensor, has no modules in it, or is of a class that is not to be split.
        self.whole = True
        #: Whether it waits to be placed.
        self.queued = False

    def holds(self, other: Node) -> bool:
        """Whether `other` is this node or inside it."""
        return self.start <= other.start < self.end


class Tree:
    """The parts of a model.

    Args:
        model: the model, on any device.
        whole: names of classes that are not to be split.
        size_of: the bytes of a tensor with its name, see `sizes.sizing`.
    """

    def __init__(self, model: torch.nn.Module, whole: frozenset[str], size_of: SizeOf) -> None:
        self.nodes: list[Node] = []
        self._whole = whole
        self._size_of = size_of
        #: The first place of each tensor, and all places of those that are in several.
        self._first: dict[int, Node] = {}
        self._tied: dict[int, list[Node]] = {}
        self.root = self._visit(model, "", None)

    @property
    def tied(self) -> list[list[Node]]:
        """The places of each tensor that is in several."""
        return list(self._tied.values())

    def _visit(self, module: torch.nn.Module, name: str, parent: Node | None) -> Node:
        """Add a module, and what is in it if it can be split; the model itself always can."""
        node = Node(name, type(module).__name__, parent, len(self.nodes))
        self.nodes.append(node)
        modules = {key: each for key, each in module._modules.items() if each is not None} if module._modules else {}
        prefix = name + "." if name else ""
        if parent is not None and (not modules or node.kind in self._whole):
            self._take_all(module, prefix, node)
            return node
        node.whole = False
        children = node.children
        for key, parameter in module._parameters.items():
            if parameter is not None:
                children.append(self._add_tensor(prefix + key, parameter, node))
        for key, child in modules.items():
            children.append(self._visit(child, prefix + key, node))
        for key, buffer in module._buffers.items():  # last, since they are mostly added to what comes out
            if buffer is not None:
                children.append(part := self._add_tensor(prefix + key, buffer, node))
                part.buffers = part.size
        for part in children:
            node.size += part.size
            node.buffers += part.buffers
        node.end = len(self.nodes)
        return node

    def _add_tensor(self, name: str, tensor: torch.Tensor, owner: Node) -> Node:
        """Add a tensor that can be placed by itself."""
        node = Node(name, "", owner, len(self.nodes))
        self.nodes.append(node)
        node.size = self._count(name, tensor, node)
        return node

    def _take_all(self, module: torch.nn.Module, prefix: str, node: Node) -> None:
        """Count everything in a module that can't be split as one node."""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                node.size += self._count(prefix + key, parameter, node)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                node.buffers += (size := self._count(prefix + key, buffer, node))
                node.size += size
        for key, child in module._modules.items():
            if child is not None:
                self._take_all(child, f"{prefix}{key}.", node)

    def _count(self, name: str, tensor: torch.Tensor, place: Node) -> int | float:
        """Return the size of a tensor, or nothing if it was counted in another place."""
        first = self._first.get(id(tensor))
        if first is None:
            self._first[id(tensor)] = place
            return self._size_of(name, tensor)
        if first is not place:
            self._tied.setdefault(id(tensor), [first]).append(place)
        return 0
