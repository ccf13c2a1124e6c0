"""Fake tensors, and the errors by which they refuse."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from foregrad.process.temporary import TemporaryChange

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
    "quiet_torch",
]

_LOGGERS = ("torch._subclasses.fake_tensor", "torch._inductor.ir", "torch.fx.experimental.symbolic_shapes")


class _Quiet(TemporaryChange):
    """Loggers of torch that leave out what a thread does which wants it so."""

    places = tuple(f"filters of the logger {name}" for name in _LOGGERS)

    def change(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)

    def put_back(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)

    def _filter(self, record: logging.LogRecord) -> bool:
        return not self.here


_quiet = _Quiet()


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep torch from logging what is handled: an error in fake tensors, an op that a library calls by its name."""
    with _quiet.held(True):
        yield
