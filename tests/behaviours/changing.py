"""Cases of something that changes between two calls.

Each is a generator: the first `yield` gives the function or module, every later one is a call after a change.
"""

import dataclasses
import typing

from torch import nn

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


class Made(nn.Module):
    """Has the attributes that a test gives it."""

    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def module(forward, **attributes):
    """A module with this forward and these attributes."""
    return type("Made", (Made,), {"forward": forward})(**attributes)


@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    inner: typing.Any = None
