"""Files that a function read by their names: they must look as they did."""

from __future__ import annotations

from typing import Any

from foregrad.record.python.world_reads import FileRead
from foregrad.runtime.guards.nodes import ReadNode
from foregrad.runtime.guards.walk import GuardWalk


class FileNode(ReadNode):
    """A file, compared by its size, its time and its place on the disk."""

    __slots__ = ()

    def is_same(self) -> bool:
        return bool(FileRead.at(self.live.path) == self.live)

    def update(self, value: Any) -> str | None:
        return None if self.is_same() else f"the file {self.live.path} has changed"


def make_file(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    if type(value) is not FileRead:
        return None
    node = FileNode(name, value)
    walk.holders.append(node)  # type: ignore[arg-type]  # it is compared as an array is
    return node
