"""What differs between two graphs."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from foregrad.graph.vertices import Vertex, vertices_of


@dataclass(frozen=True)
class Diff:
    """Two graphs side by side, in the order of `walk`; `str` is a listing with `-`, `+` and `~`."""

    lines: tuple[tuple[str, Vertex], ...]  # " " in both, "-" in the first alone, "+" in the second, "~" is rewired

    @property
    def removed(self) -> list[Vertex]:
        return [vertex for mark, vertex in self.lines if mark == "-"]

    @property
    def added(self) -> list[Vertex]:
        return [vertex for mark, vertex in self.lines if mark == "+"]

    @property
    def rewired(self) -> list[Vertex]:
        """Nodes of the second that are as in the first, but lead to other nodes."""
        return [vertex for mark, vertex in self.lines if mark == "~"]

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return any(mark != " " for mark, _ in self.lines)

    def __str__(self) -> str:
        return "\n".join(f"{mark} {vertex.text()}" for mark, vertex in self.lines)


def diff(a: Any, b: Any) -> Diff:
    """What differs between two graphs, given by outputs, or two programs: nodes, their sizes, what they save, edges."""
    before, after = vertices_of(a), vertices_of(b)
    matcher = SequenceMatcher(None, [v.text() for v in before], [v.text() for v in after], autojunk=False)
    blocks = matcher.get_opcodes()
    same = {j1 + k: i1 + k for tag, i1, i2, j1, _ in blocks if tag == "equal" for k in range(i2 - i1)}
    matched = set(same.values())
    lines: list[tuple[str, Vertex]] = []
    for tag, i1, i2, j1, j2 in blocks:
        if tag != "equal":
            lines += [("-", vertex) for vertex in before[i1:i2]]
            lines += [("+", vertex) for vertex in after[j1:j2]]
            continue
        for place in range(j1, j2):
            new = [same.get(following) for following in after[place].following]
            old = [following if following in matched else None for following in before[same[place]].following]
            lines.append((" " if new == old else "~", after[place]))
    return Diff(tuple(lines))
