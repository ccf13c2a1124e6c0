"""Memory: how many bytes a graph keeps for its backward, by node and by module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from foregrad.graph.vertices import Vertex, vertices_of


@dataclass(frozen=True)
class Kept:
    """A node, and the bytes that are kept because of it and of none that ran before it."""

    vertex: Vertex
    num_bytes: int


@dataclass(frozen=True)
class Memory:
    """What a graph keeps alive, each storage counted once, for the first node of the forward that saved it."""

    nodes: tuple[Kept, ...]  # in the order of the forward
    leaves: int  # bytes that are saved too, but belong to leaves or inputs, which are alive anyway
    by_place: dict[str, int]  # the devices, and `disk`

    @property
    def total(self) -> int:
        """Bytes that go when the graph goes."""
        return sum(kept.num_bytes for kept in self.nodes)

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes of each module's own nodes, most first; `""` are the model's own, and those of unknown modules."""
        count: Counter[str] = Counter()
        for kept in self.nodes:
            count[kept.vertex.module] += kept.num_bytes
        return dict(count.most_common())

    def below(self, module: str) -> int:
        """Bytes of a module and of all modules inside."""
        return sum(size for path, size in self.by_module.items() if path == module or path.startswith(f"{module}."))

    def __str__(self) -> str:
        lines = [f"{bytes_text(self.total)} saved, and {bytes_text(self.leaves)} that leaves have anyway"]
        lines += [f"{bytes_text(size):>10}  {place}" for place, size in self.by_place.items()] * (
            len(self.by_place) > 1
        )
        known = {path: size for path, size in self.by_module.items() if size}
        if any(known):
            lines += ["by module", *(f"{bytes_text(size):>10}  {path or '(model)'}" for path, size in known.items())]
        lines.append("by node")
        for kept in sorted(self.nodes, key=lambda kept: -kept.num_bytes):
            if kept.num_bytes:
                lines.append(f"{bytes_text(kept.num_bytes):>10}  {kept.vertex.text()}")
        return "\n".join(lines)


def memory(outputs: Any) -> Memory:
    """What the graph behind some outputs keeps for backward, or what a program's forward keeps for its backward."""
    vertices = vertices_of(outputs)
    owned: dict[Any, int] = {}
    for vertex in vertices:
        owned |= vertex.owned
    seen: dict[Any, int] = {}
    places: Counter[str] = Counter()
    found = []
    is_forward = any(vertex.phase == "forward" for vertex in vertices)
    for vertex in vertices if is_forward else reversed(vertices):
        num_bytes = 0
        for one in vertex.saved:
            new = {key: size for key, size in one.storages.items() if key not in seen}
            seen |= new
            size = sum(size for key, size in new.items() if key not in owned)
            num_bytes += size
            places[one.place] += size
        found.append(Kept(vertex, num_bytes))
    return Memory(tuple(found), sum(size for key, size in seen.items() if key in owned), dict(places))


def bytes_text(size: int) -> str:
    """`512 B`, `1.5 kB`, `20 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
