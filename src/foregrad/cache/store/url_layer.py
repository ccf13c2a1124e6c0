"""URL: entries as files of any file system that fsspec knows: `s3://bucket/programs`, `memory://programs`.

    s3://bucket/programs/v1/3f/3f0c….fg      an entry: its signed seal, then its content

A file may be seen half written where the file system allows that; then its signature is wrong. Nothing is ever
removed here by itself, and there are no leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from foregrad.cache.store.layer import (
    NOT_THERE,
    Hit,
    ListedEntry,
    Miss,
    Unreachable,
    check_key,
    is_key,
    too_large,
)
from foregrad.cache.store.seal import Seal
from foregrad.process.folders import VERSION


@dataclass
class UrlLayer:
    """A folder of a remote file system; `name` is its URL without a password."""

    url: InitVar[str]
    name: str
    seal: Seal
    max_entry_bytes: int
    _files: Any = field(init=False, repr=False)
    _root: str = field(init=False, repr=False)

    def __post_init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("a cache at a URL needs fsspec: pip install 'foregrad[remote]'") from error
        # Listings that fsspec remembers would hide what other processes write.
        self._files, path = url_to_fs(url, use_listings_cache=False)
        self._root = f"{path.rstrip('/')}/v{VERSION}"

    def get(self, key: str) -> Hit | Miss:
        return self.read(key)

    def read(self, key: str) -> Hit | Miss:
        path = self._path(key)
        with self._answers():
            try:
                size = self._files.size(path)
                if size is None or size > self.max_entry_bytes:
                    return Miss(f"too large: {size} bytes")
                raw = self._files.cat_file(path, start=0, end=size)  # not more: the file may be another one by now
            except (FileNotFoundError, IsADirectoryError):
                return Miss(NOT_THERE)
        data = raw[self.seal.size :]
        return self.seal.open(key, raw[: self.seal.size], data) or Hit(data, self.name)

    def peek(self, key: str, offset: int, length: int) -> bytes:
        begin = self.seal.size + offset
        with self._answers():
            return bytes(self._files.cat_file(self._path(key), start=begin, end=begin + length))

    def put(self, key: str, data: bytes) -> None:
        size = self.seal.size + len(data)
        if size > self.max_entry_bytes:
            raise too_large(size)
        path, content = self._path(key), self.seal.of(key, data) + data
        with self._answers():
            try:
                self._files.pipe_file(path, content)
            except FileNotFoundError:
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, content)

    def delete(self, key: str) -> None:
        with self._answers():
            if self._files.exists(self._path(key)):
                self._files.rm_file(self._path(key))

    def entries(self) -> Iterator[ListedEntry]:
        with self._answers():
            found = self._files.find(self._root, detail=True)
        for path, info in found.items():
            file = PurePosixPath(path)
            if file.suffix == ".fg" and is_key(file.stem):
                yield ListedEntry(file.stem, int(info.get("size") or 0), _time(info), self.name)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)[:2]}/{key}.fg"

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """What a file system raises is an OSError here; those of other libraries have errors of their own."""
        try:
            yield
        except PermissionError:
            raise
        except Exception as error:  # fsspec passes on whatever the library behind it raises
            raise Unreachable(f"{type(error).__name__}: {error}") from error


def _time(info: dict[str, Any]) -> float | None:
    """When a file was written, as far as its file system says so."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
