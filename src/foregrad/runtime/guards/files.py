"""Files that a function read by their names: they must look as they did."""

from __future__ import annotations

from typing import Any

from foregrad.record.python.world_reads import File
from foregrad.runtime.guards.nodes import Node
from foregrad.runtime.guards.walk import Walk


class FileNode(Node):
    """A file, compared by its size, its time and its place on the disk."""

    __slots__ = ()

    def is_same(self) -> bool:
        return bool(File.at(self.live.path) == self.live)

    def update(self, value: Any) -> str | None:
        return None if self.is_same() else f"the file {self.live.path} has changed"


def make_file(walk: Walk, value: Any, name: str) -> Node | None:
    if type(value) is not File:
        return None
    node = FileNode(name, value)
    walk.holders.append(node)  # type: ignore[arg-type]  # it is compared as an array is
    return node
