"""Calls in entries: the captured programs of a function, as JSON and blobs, and made again from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foregrad.cache.serialize.hook_places import names_in
from foregrad.cache.serialize.restore import Restorer, as_described
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.core.errors import CannotKeep, CorruptArtifact
from foregrad.core.generated import Check, Line, generated_of
from foregrad.process.atomic_write import Bytes
from foregrad.process.code_files import code_file
from foregrad.process.garbage_collection import no_garbage_collection
from foregrad.runtime.guards.torch_guards import SameState
from foregrad.runtime.sentinels import KEPT_TOO, PYTHON, REPLACED

if TYPE_CHECKING:
    from foregrad.backends.backend import Backend
    from foregrad.runtime.compiled_stage import CompiledStage

OBJECTS = "objects.json"
MOST_OBJECTS_BYTES = 256 << 20  # those of a large model have a few million


@dataclass(frozen=True)
class KeptCalls:
    """Descriptions of calls, and the blobs that they name."""

    roots: list[Any] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)


def keep_calls(calls: list[Callable[..., Any]], places: StatePlaces, *, needs_code: bool) -> KeptCalls:
    """Describe generated calls. Without `needs_code` they must need no function of the user's."""
    from foregrad.cache.serialize.describe import Describer

    describer = Describer(places, needs_code=needs_code)
    roots = [describer(call) for call in calls]
    return KeptCalls(roots, {**describer.blobs, OBJECTS: json.dumps(describer.table).encode()})


def restorer_of(
    read: Callable[[str], Bytes],
    places: StatePlaces,
    record: Callable[[], CompiledStage] | None = None,
    backend: Backend | None = None,
) -> Callable[[Any], Any]:
    """What makes the calls of an entry; `read` gives the contents of its blobs. With a `backend` none of its code is
    used: its graphs are compiled with it."""

    def unpack(name: str, beside: Mapping[str, str]) -> Any:
        files = {".so": name, **beside}  # a name ends in the digest of the contents
        return code_file(name.rpartition("/")[2], {suffix: read(blob) for suffix, blob in files.items()})

    with as_described("a call"), no_garbage_collection():
        table = json.loads(bytes(read(OBJECTS)))
        if backend is None:
            restorer = Restorer(table, read, places, unpack, record)
        else:
            from foregrad.cache.serialize.data_only import DataOnly

            restorer = DataOnly(table, read, places, backend)

    def restore(root: Any) -> Any:
        with as_described("a call"), no_garbage_collection():
            found = restorer(root)
            if found is not None and not callable(found):
                raise CorruptArtifact("a call of the file is no function")
            return found

    return restore


def without_module_checks(call: Callable[..., Any], places: StatePlaces) -> Callable[..., Any]:
    """A call for processes that have its sources: they look at modules as they reach them. What only files check is
    left out. Modules that are in no variable, such as those that the function makes at each call, go by their class."""
    found = generated_of(call)
    assert found is not None
    recipe: Any = found.recipes[PYTHON]
    modules = tuple(dict.fromkeys(one if places.of(one) is not None else type(one) for one in recipe.modules))
    used = names_in(compile(found.text, "<a call>", "exec"))
    return replace(
        found,
        namespace={name: value for name, value in found.namespace.items() if name in used},
        recipes={**found.recipes, PYTHON: replace(recipe, modules=modules, module_checks=None)},
    ).load()


def for_artifact(call: Callable[..., Any], *, is_bare: bool) -> Callable[..., Any]:
    """A call that also begins without gradients where it replaces them, as it does in a new process.

    A bare one does not look at modules: they have no code, and nobody can have changed them.
    """
    found = generated_of(call)
    assert found is not None
    left_out = (REPLACED, KEPT_TOO) if is_bare else (REPLACED,)
    recipe: Any = found.recipes[PYTHON]
    if recipe.module_checks is None:
        raise CannotKeep(
            "it was found in a cache, and has modules with hooks or modules that are made inside, which a file cannot "
            "check.\nCompile it with cache=False."
        )
    lines: list[Line] = []
    for line in found.lines:
        about = line.about if isinstance(line, Check) else ""
        if about == PYTHON:
            lines += () if is_bare else recipe.module_checks
        elif about not in left_out:
            lines.append(line)
    kept = replace(found, lines=tuple(lines), bytecode=b"")
    used = names_in(compile(kept.text, "<a call>", "exec"))
    return replace(
        kept,
        namespace={name: value for name, value in found.namespace.items() if name in used},
        recipes={name: value for name, value in found.recipes.items() if name in used},
    ).load()


def with_these_threads(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of an artifact, for as many threads as this process has."""
    found = generated_of(call)
    assert found is not None
    states = {n: r.with_these_threads() for n, r in found.recipes.items() if isinstance(r, SameState)}
    made = {name: state.make() for name, state in states.items()}
    return replace(found, namespace={**found.namespace, **made}, recipes={**found.recipes, **states}).load()
