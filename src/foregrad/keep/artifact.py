"""Artifacts: a compiled function, module or step in one file, which a new process runs without tracing.

compiled.save("step.fg")
step = fg.load("step.fg", state=(model, optimizer))     # trains these
step = fg.load("step.fg")                               # trains the weights in the file, needs no model code
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from foregrad.entries.container import Entry, unpack, write
from foregrad.errors import StaleArtifact
from foregrad.keep.calls import for_artifact, keep_calls, restorer_of, with_these_threads
from foregrad.keep.loaded import Loaded
from foregrad.keep.needs import foregrad_version, missing, needs
from foregrad.keep.places import Places
from foregrad.keep.restore import as_described
from foregrad.keep.state import keep_state, mismatches, stand_ins
from foregrad.keep.tensors import tensors_from_bytes, tensors_to_bytes
from foregrad.substrate import tell_it_steps
from foregrad.words.garbage import no_garbage_collection
from foregrad.words.progress import Timings

if TYPE_CHECKING:
    from foregrad.entries.trust import Signer, Trust
    from foregrad.program.program import Program
    from foregrad.runtime.halves import CompiledStage

_TENSORS = "state.safetensors"


@dataclass(frozen=True)
class KeptCapture:
    """One captured program, as an artifact holds it."""

    call: Callable[..., Any]
    stage: CompiledStage
    listing: str
    reason: str
    timings: Timings


def save(
    path: Path,
    kind: str,
    name: str,
    captures: Sequence[KeptCapture],
    state: tuple[Any, ...],
    *,
    weights: bool = True,
    signer: Signer | None = None,
) -> None:
    """Write captured programs, and the state that they run on, into a file."""
    from foregrad.keep.one_library import one_library

    for capture in captures:
        capture.stage.has_backward()
    calls = [for_artifact(capture.call, is_bare=bare) for bare in (False, True) for capture in captures]
    kept = keep_calls(calls, Places(state, None), needs_code=False)
    held = keep_state(state)
    names = {id(tensor): name for name, tensor in held.tensors.items()}
    header = {
        "kind": kind,
        "name": name,
        "needs": needs(has_code=any(name.startswith("code/") for name in kept.blobs)),
        "provenance": {"foregrad": foregrad_version(), "created": datetime.now(UTC).isoformat(timespec="seconds")},
        "captures": [
            {
                "reason": capture.reason,
                "signature": signature_of(capture.stage.program),
                "program": capture.listing,
                "timings": [[part.name, part.seconds] for part in capture.timings.parts],
                "call": root,
                "bare": bare,
                "library": one_library(capture.stage, names, kept.blobs),
            }
            for capture, root, bare in zip(captures, kept.roots, kept.roots[len(captures) :], strict=False)
        ],
        "state": held.layout,
        "weights": weights,
    }
    write(path, header, {**kept.blobs, _TENSORS: tensors_to_bytes(held.tensors if weights else {})}, signer=signer)


def load(path: str | Path, state: tuple[Any, ...] | Any = None, *, trust: Trust | None = None) -> Loaded:
    """A saved function, module or step, ready to run: nothing is traced or compiled.

    `state` are the modules, optimizers and tensors that it is to work on, as they were given when it was made; they
    must have the names, shapes and dtypes that they had. Without it the tensors in the file are used, and no code of
    the model is needed.

    A file holds compiled code: load what you trust. With `trust` it must be signed by a key that you name.
    """
    entry = unpack(Path(path), trust=trust)
    with as_described(f"what {path} holds"), no_garbage_collection():
        about = entry.about
        different = missing(about["needs"])
        if state is None and not about["weights"]:
            different.append("it was saved without the weights, so it needs `state`")
        if state is not None:
            state = state if isinstance(state, tuple) else (state,)
            different += mismatches(about["state"], state)
        if different:
            raise StaleArtifact(
                f"{path} does not fit:\n  " + "\n  ".join(different) + "\nSave it again from where it was made."
            )
        if state is not None:
            return _loaded(entry, state, path, is_bare=False)
        with entry.taken(_TENSORS) as data:
            return _loaded(entry, stand_ins(about["state"], tensors_from_bytes(data)), path, is_bare=True)


def _loaded(entry: Entry, state: tuple[Any, ...], path: str | Path, *, is_bare: bool) -> Loaded:
    restore = restorer_of(entry.blob, Places(state, None))
    for one in state:
        if isinstance(one, Optimizer):
            tell_it_steps(one)
    roots = [capture["bare" if is_bare else "call"] for capture in entry.about["captures"]]
    return Loaded(entry.about, [partial(_made, restore, root) for root in roots], state, str(path), is_bare)


def _made(restore: Callable[[Any], Callable[..., Any]], root: Any) -> Callable[..., Any]:
    return with_these_threads(restore(root))


def signature_of(program: Program) -> dict[str, Any]:
    """Names, roles and specs of what enters and leaves, as text."""
    signature = program.signature
    return {
        side: [{"role": one.role, "name": one.name, "spec": str(one.spec)} for one in values]
        for side, values in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
