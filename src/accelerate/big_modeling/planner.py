"""Decide which part of a model goes to which device, filling one after the other in the order of definition.

A part that doesn't fit is split into its parts unless it is whole; then the next device is tried, and the ones before
are not gone back to. Parts that share parameters go together. The first accelerator and the CPU keep room for the
largest part that is still to come, since what doesn't fit anywhere else passes through them, layer by layer. Each
part is looked at once, or once per level at which it is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.base.messages import message
from accelerate.big_modeling.tree import Node, Tree
from accelerate.big_modeling.units import readable


@dataclass(frozen=True)
class Decision:
    """One thing that the planner decided, and why.

    Args:
        name: the part.
        size: its bytes; of parameters that are shared only those that no part before it has.
        device: the device that was filled then.
        action: "placed", "split", or "too large" where it has to go to a later device.
        room: the bytes that the device had left for it; None without limit.
        reserved: the bytes that were kept free on it for the largest part to come.
        ties: the parts that share parameters with it, and go with it or are in its way.
    """

    name: str
    size: int | float
    device: int | str
    action: str
    room: int | float | None
    reserved: int | float
    ties: tuple[str, ...] = ()

    def __str__(self) -> str:
        room = "no limit" if self.room is None else f"room {readable(max(0, self.room))}"
        kept = f", {readable(self.reserved)} kept for the largest layer to come" if self.reserved else ""
        ties = f", with {', '.join(self.ties)} that it shares parameters with" if self.ties else ""
        said = {"placed": "->", "split": "is split on", "too large": "does not fit on"}[self.action]
        return f"{self.name or 'the model'} ({readable(self.size)}{ties}) {said} {self.device} ({room}{kept})"


class Planner:
    """Places the parts of one model.

    Args:
        tree: the model.
        budget: bytes by device, in the order in which they are filled; "disk" comes last, without limit unless given.
        fallback: when the part whose turn it is doesn't fit on an empty device, look for any other that does.
    """

    def __init__(self, tree: Tree, budget: Mapping[int | str, int | float], fallback: bool = False) -> None:
        self.tree = tree
        self.budget: dict[int | str, int | float | None] = {**budget, "disk": budget.get("disk")}
        self.fallback = fallback
        self.devices = list(self.budget)
        self.keeping_room = {self.devices[0], "cpu"} - {"disk"}
        self.map: dict[str, int | str] = {}
        self.decisions: list[Decision] = []
        self.used: dict[int | str, int | float] = dict.fromkeys(self.devices, 0)
        self._at = 0
        self._waiting: list[Node] = []  # the next one is last
        self._ties = _ties_by_node(tree)
        self._largest = _LargestAfter(tree)

    def run(self) -> Planner:
        """Place everything, and return self.

        Raises:
            ValueError: "disk" has a limit that is too small.
        """
        self._wait(self.tree.root.children)
        if not self._waiting:
            self.map[""] = self.devices[0]
        while self._waiting:
            node = self._waiting[-1]
            if node.queued:
                self._treat(node)
            else:
                self._waiting.pop()
        return self

    def _treat(self, node: Node) -> None:
        """Place one part, split it or what shares its parameters, or go on to the next device."""
        device = self.devices[self._at]
        partners = self._partners(node)
        limit = self.budget[device]
        reserved = self._largest.after(node) if limit is not None and device in self.keeping_room else 0
        room = None if limit is None else limit - self.used[device] - reserved
        together = node.size + sum(each.size for each in partners)
        said: dict[str, Any] = {"room": room, "reserved": reserved, "ties": tuple(each.name for each in partners)}
        if room is None or together <= room:
            self._record(node, "placed", **said)
            self._place([node, *partners], device)
        elif node.size > room and not node.whole:
            self._record(node, "split", **said)
            self._split(node)
        elif node.size <= room and (partner := next((each for each in partners if not each.whole), None)):
            self._record(partner, "split", **said)
            self._split(partner)
        else:
            self._record(node, "too large", **said)
            self._next_device(node, room)

    def _place(self, nodes: list[Node], device: int | str) -> None:
        for node in nodes:
            node.queued = False
            self.map[node.name] = device
            self.used[device] += node.size
        for node in nodes[1:]:
            self._largest.remove(node)

    def _split(self, node: Node) -> None:
        """Let the parts of `node` wait in its place."""
        node.queued = False
        at = len(self._waiting) - 1 if self._waiting[-1] is node else self._waiting.index(node)
        del self._waiting[at]
        self._wait(node.children, at)

    def _wait(self, nodes: list[Node], at: int = 0) -> None:
        for node in nodes:
            node.queued = True
        self._waiting[at:at] = reversed(nodes)

    def _next_device(self, node: Node, room: int | float) -> None:
        device = self.devices[self._at]
        if device == "disk":
            raise ValueError(_disk_full(node, room))
        if self.fallback and self.used[device] == 0 and (found := self._any_that_fits(room)):
            self._bring_forward(found)
        else:
            self._at += 1

    def _any_that_fits(self, room: int | float) -> Node | None:
        """Return the first part that fits with what shares its parameters, looking into each that waits in turn."""
        for waiting in reversed(self._waiting):
            level = [waiting] if waiting.queued else []
            while level:
                for node in level:
                    if node.kind and node.size + sum(each.size for each in self._partners(node)) <= room:
                        return node
                level = [child for node in level if not node.whole for child in node.children]
        return None

    def _bring_forward(self, node: Node) -> None:
        """Let `node` be the next, splitting the parts that it is in."""
        above: list[Node] = []
        parent = node.parent
        while not node.queued and parent is not None and not (above and above[-1].queued):
            above.append(parent)
            parent = parent.parent
        for each in reversed(above):
            self._split(each)
        self._waiting.remove(node)
        self._waiting.append(node)

    def _partners(self, node: Node) -> list[Node]:
        """Return the waiting parts outside of `node` that share parameters with it."""
        found: list[Node] = []
        for places in self._ties.get(node.start, ()):
            for place in places:
                if not node.holds(place) and (waiting := _waiting_around(place)) and waiting not in found:
                    found.append(waiting)
        return found

    def _record(self, node: Node, action: str, **said: Any) -> None:
        self.decisions.append(Decision(node.name, node.size, self.devices[self._at], action, **said))


def _waiting_around(node: Node | None) -> Node | None:
    """Return the waiting part that `node` is in, which may be itself."""
    while node is not None and not node.queued:
        node = node.parent
    return node


def _ties_by_node(tree: Tree) -> dict[int, list[list[Node]]]:
    """Return, for each node that holds a parameter with several names, the places of all such parameters in it."""
    found: dict[int, list[list[Node]]] = {}
    for places in tree.tied:
        above = {node.start for place in places for node in _and_above(place)}
        for start in above:
            found.setdefault(start, []).append(places)
    return found


def _and_above(node: Node | None) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.parent


class _LargestAfter:
    """The size of the largest part that can't be split, among those that come after a node."""

    def __init__(self, tree: Tree) -> None:
        self.sizes: list[int | float] = [node.size if node.whole else 0 for node in tree.nodes]
        self.sizes.append(0)
        self._build()

    def _build(self) -> None:
        """Note, for each number, that of the largest from there on; of several the last, which is removed last."""
        sizes = self.sizes
        best = len(sizes) - 1
        self.suffix = [best] * len(sizes)
        for index in range(best, -1, -1):
            if sizes[index] > sizes[best]:
                best = index
            self.suffix[index] = best
        self.removed: set[int] = set()

    def after(self, node: Node) -> int | float:
        """Return the size of the largest layer behind `node` that isn't placed."""
        if self.suffix[node.end] in self.removed:
            self._build()
        return self.sizes[self.suffix[node.end]]

    def remove(self, node: Node) -> None:
        """Take note that `node` is placed before its turn."""
        for index in range(node.start, node.end):
            if self.sizes[index]:
                self.sizes[index] = 0
                self.removed.add(index)


def _disk_full(node: Node, room: int | float) -> str:
    return message(
        given=f"a max_memory with a limit for the disk, of which {readable(max(0, room))} is left",
        why=f"{node.name} takes {readable(node.size)}, and no other device has room for it",
        allowed="budgets that add up to the size of the model; without a limit the disk takes whatever is left",
        do="leave out 'disk' in max_memory, or give the other devices more",
    )
