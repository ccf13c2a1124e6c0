"""Sources: the key of a program that was not captured yet, from the code and the values that a capture would meet.

Where the key cannot see something that a capture may depend on, it is unsure and says why: then the function is
captured, and the program found by its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.cache.key.classes import CLASSES, kind_of, show_patches
from foregrad.cache.key.code import CALLABLES
from foregrad.cache.key.data import OBJECTS, VALUES, WHOLE
from foregrad.cache.key.ingredients import Ingredient, Key
from foregrad.cache.key.ops import OPS
from foregrad.cache.key.tensors import TENSORS, show_equal_numbers
from foregrad.cache.key.walk import KeyWalk, Showers
from foregrad.process.garbage_collection import no_garbage_collection
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.global_state import global_hooks, replaced_kernels

SHOWERS = Showers(
    {**VALUES, **CALLABLES, **CLASSES, **OPS}, {**OBJECTS, **TENSORS}, kind_of, frozenset({type, *WHOLE, *TENSORS})
)

#: Where users most often put functions of their own in place of torch's.
_HOMES = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.nn.init": torch.nn.init,
    "torch.autograd": torch.autograd,
    "torch.utils.checkpoint": torch.utils.checkpoint,
}


@dataclass(frozen=True)
class Sources:
    """A key from the sources, and why it may not say everything."""

    key: Key
    unsure: tuple[str, ...] = ()

    @property
    def is_sure(self) -> bool:
        return not self.unsure


def sources_of(
    target: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    state: tuple[Any, ...] = (),
    environment: Sources | None = None,
    of_any_size: frozenset[int] = frozenset(),
) -> Sources:
    """The key of what a call would be captured to: code that can run, layout of state and arguments, surroundings.
    What has the ids `of_any_size` are arguments whose sizes vary in the program that is looked for."""
    walk = KeyWalk(SHOWERS, declared=state, of_any_size=of_any_size)
    values = {f"state {place}": one for place, one in enumerate(state)}
    values["target"] = target
    values |= {f"argument {place}": one for place, one in enumerate(args)}
    values |= {f"argument {name}": one for name, one in kwargs.items()}
    values |= {f"hooks of all: {name}": hooks for name, hooks in global_hooks().items()}
    with no_garbage_collection(), no_function_modes():
        for name, value in values.items():
            _tell(walk, name, value)
        look_or_doubt(walk, "equal numbers", lambda: walk.add("equal numbers", show_equal_numbers(state)))
        walk.add("arguments", f"{len(args)} by position, then {list(kwargs)}")
        if of_any_size:
            walk.add("sizes", "of arguments vary")
        found = finish(walk)
    if environment is None:
        return found
    return Sources(Key((*environment.key.ingredients, *found.key.ingredients)), (*environment.unsure, *found.unsure))


def sources_of_code(prefix: str, values: dict[str, Any]) -> Sources:
    """Functions by themselves, such as passes: each is an ingredient, with all that it reaches."""
    walk = KeyWalk(SHOWERS, prefix=prefix)
    for name, value in values.items():
        _tell(walk, name, value)
    return finish(walk, is_whole=False)


def finish(walk: KeyWalk, *, is_whole: bool = True) -> Sources:
    """Look at everything that is left."""
    if is_whole:
        for title, home in _HOMES.items():
            show_patches(walk, home, title)
        replaced = replaced_kernels()
        if replaced:
            walk.doubt(f"kernels of torch's own ops were replaced: {', '.join(replaced)}")
    look_or_doubt(walk, "what the target reaches", walk.run)
    libraries = [Ingredient.of(f"library {name}", text) for name, text in sorted(walk.libraries.items())]
    return Sources(Key((*walk.ingredients.values(), *libraries)), tuple(walk.doubts))


def _tell(walk: KeyWalk, name: str, value: Any) -> None:
    look_or_doubt(walk, name, lambda: walk.add(name, walk.show(value, name)))


def look_or_doubt(walk: KeyWalk, what: str, look: Callable[[], None]) -> None:
    """Look at something. Where that fails, the function is captured, as it would be without a key."""
    try:
        look()
    except RecursionError:
        walk.doubt(f"{what} is nested too deeply")
    except Exception as error:  # noqa: BLE001  objects of users may do anything when they are looked at
        walk.doubt(f"{what} cannot be looked at: {type(error).__name__}: {error}")
