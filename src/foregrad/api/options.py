"""Options of `fg.compile` and `fg.step`, as the user says them, checked at once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from foregrad.backends.backend import Backend
from foregrad.backends.choose import choose, passes_for
from foregrad.backends.compiling import Inductor
from foregrad.backends.eager import compile_graph
from foregrad.cache.serialize.cached_calls import cache_for
from foregrad.cache.store.cache import Cache
from foregrad.record.symbols.varying import Dimensions, Varying
from foregrad.runtime.options import Options

#: All dimensions, none, those that have changed (None), or these by the name of the argument.
Choice = bool | Dimensions | None


def options_of(
    *,
    backend: str | Backend | None,
    passes: Any,
    rng: str,
    regions: str,
    dynamic: Any,
    questions: str,
    python: str,
    refused: str,
    cache: bool | str | os.PathLike[str] | Cache,
    progress: bool,
) -> Options:
    """The options of a compiled function or step."""
    if questions not in ("tree", "error"):
        raise ValueError(f'questions is "tree" or "error", not {questions!r}')
    if python not in ("warn", "error", "allow"):
        raise ValueError(f'python is "warn", "error" or "allow", not {python!r}')
    if refused not in ("error", "eager"):
        raise ValueError(f'refused is "error" or "eager", not {refused!r}')
    chosen = choose(backend, rng=rng, regions=regions)
    varies = _for_backend(_checked(dynamic), chosen)
    every_pass = (*_checked_passes(passes), *passes_for(chosen))
    return Options(chosen, every_pass, progress, cache_for(cache, chosen), questions, refused, python, varies)


def _checked(dynamic: Any) -> Choice:
    """What a user has said of sizes, if it can be meant."""
    if dynamic is None or isinstance(dynamic, bool):
        return dynamic
    if not isinstance(dynamic, Mapping):
        raise TypeError(f'dynamic is None, True, False or {{"argument": (dimensions)}}, not a {type(dynamic).__name__}')
    return {name: _dimensions(found) for name, found in dynamic.items()}


def _dimensions(found: Any) -> tuple[Varying, ...]:
    """Dimensions of one argument: `1`, `(0, 1)`, `{1: (2, 4096)}` with bounds, `{1: 8}` for multiples."""
    each = found if isinstance(found, Mapping) else dict.fromkeys((found,) if isinstance(found, int) else found)
    if not all(type(dim) is int for dim in each):
        raise TypeError("the dimensions of an argument that vary are numbers, such as (0, 1)")
    return tuple(_varying(dim, said) for dim, said in each.items())


def _varying(dim: int, said: Any) -> Varying:
    if said is None:
        return Varying(dim)
    if type(said) is int and said > 0:
        return Varying(dim, multiple=said)
    is_pair = isinstance(said, (tuple, list)) and len(said) == 2 and type(said[0]) is int
    if not is_pair or not (said[1] is None or (type(said[1]) is int and said[0] <= said[1])):
        raise TypeError(
            f"a size varies within (least, most), or is a multiple of a number, such as 8; {said!r} is neither"
        )
    return Varying(dim, max(2, said[0]), said[1])


def _checked_passes(passes: Any) -> tuple[Any, ...]:
    """Passes that a user has given, if they are functions."""
    found = tuple(passes) if isinstance(passes, (list, tuple)) else None
    if found is None or not all(map(callable, found)):
        raise TypeError(f"passes is a list of functions from a program to a program, not {passes!r:.80}")
    return found


#: Keywords of torch.compile, and what there is here in place of each.
_OF_TORCH = {
    "fullgraph": "leave it out: a function is captured as a whole, or refused with the line that is in the way",
    "mode": 'choose a backend: backend="inductor", "aoti" or "eager"',
    "options": "choose a backend, or give passes over the program: passes=(...)",
    "disable": 'leave fg.compile out, or use backend="eager"',
    "recompile_limit": "leave it out: a function that is captured often warns, and fg.explain says why",
    "isolate_recompiles": "leave it out: each compiled function has programs of its own",
    "name": "leave it out: a program is named for its function",
}


def refuse_keywords(where: str, given: Mapping[str, Any]) -> None:
    """Say what to do in place of a keyword that there is not."""
    for name in given:
        instead = _OF_TORCH.get(name)
        if instead is not None:
            raise TypeError(f"{where} has no {name}=, which is torch.compile's; {instead}")
        raise TypeError(f"{where} got an unexpected keyword argument {name!r}")


def _for_backend(choice: Choice, backend: Backend) -> Choice:
    """What is done with a backend: compilers make a program for each size."""
    if backend is compile_graph or isinstance(backend, Inductor):
        return choice
    if choice:
        warnings.warn('sizes vary with backend="eager" and "inductor"; this one makes a program for each', stacklevel=4)
    return False
