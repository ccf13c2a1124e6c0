"""Artifacts: a compiled function, module or step in one file, which a new process runs without tracing.

compiled.save("step.fg")
step = fg.load("step.fg", state=(model, optimizer))     # trains these
step = fg.load("step.fg")                               # trains the weights in the file, needs no model code
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from foregrad.cache.format.container import Entry, read_header, unpack, write
from foregrad.cache.format.keys import SecretKey, SharedKey, Trust
from foregrad.cache.serialize.calls import (
    MOST_OBJECTS_BYTES,
    OBJECTS,
    for_artifact,
    keep_calls,
    restorer_of,
    with_these_threads,
)
from foregrad.cache.serialize.keyring import as_trust, labelled, signer
from foregrad.cache.serialize.loaded import Loaded
from foregrad.cache.serialize.requirements import foregrad_version, missing, needs
from foregrad.cache.serialize.restore import as_described
from foregrad.cache.serialize.state import keep_state, mismatches, stand_ins
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.cache.serialize.tensors import tensors_from_bytes, tensors_to_bytes
from foregrad.cache.store.option_checks import check_flag
from foregrad.core.errors import CannotKeep, CorruptArtifact, StaleArtifact, UntrustedArtifact
from foregrad.process.garbage_collection import no_garbage_collection
from foregrad.process.progress import Timings
from foregrad.torch_private.training import tell_it_steps

if TYPE_CHECKING:
    from foregrad.backends.backend import Backend
    from foregrad.cache.format.keys import Key, Signer
    from foregrad.program.program import Program
    from foregrad.runtime.compiled_stage import CompiledStage

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
    key: Signer | None = None,
) -> None:
    """Write captured programs, and the state that they run on, into a file, signed by `key` or by this user's own."""
    from foregrad.cache.serialize.one_library import one_library

    check_flag("weights", weights)
    if key is not None and not isinstance(key, (SharedKey, SecretKey)):
        raise TypeError(
            f"key is a SharedKey or a SecretKey of foregrad.cache.format.keys, which can sign, not {key!r:.80}"
        )
    for capture in captures:
        capture.stage.has_backward()
    calls = [for_artifact(capture.call, is_bare=bare) for bare in (False, True) for capture in captures]
    kept = keep_calls(calls, StatePlaces(state, None), needs_code=False)
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
    blobs = {**kept.blobs, _TENSORS: tensors_to_bytes(held.tensors if weights else {})}
    _write(path, header, blobs, signer() if key is None else key)


def _write(path: Path, header: dict[str, Any], blobs: dict[str, bytes], key: Signer | None) -> None:
    if path.exists() and not path.is_file():
        raise CannotKeep(
            f"{path} is a folder, a pipe or a device, which a file cannot take the place of: name another path"
        )
    try:
        write(path, header, blobs, signer=key)
    except OSError as error:
        raise CannotKeep(
            f"{path} cannot be written: {error.strerror or error}. What was there before, if anything, is as it was."
        ) from error


def load(
    path: str | Path,
    state: tuple[Any, ...] | Any = None,
    *,
    trust: Key | Sequence[Key] | Trust | None = None,
    backend: str | Backend | None = None,
) -> Loaded:
    """A saved function, module or step, ready to run.

    `state` are the modules, optimizers and tensors that it is to work on, as they were given when it was made; they
    must have the names, shapes and dtypes that they had. Without it the tensors in the file are used, and no code of
    the model is needed.

    Code in a file is used if it is signed by a key that you trust: your own, which signs what you save, or one that
    `foregrad trust add` was told. Nothing is traced or compiled then. Of any other file only data is used: the graphs
    are compiled here, with `backend`, and none of its code runs. With `trust` a file must be signed by one of these
    keys, and is refused otherwise. `.how` of what is returned says which of the two happened.
    """
    chosen = _backend(backend) if backend is not None else None
    accepted, how = _accepted(Path(path), trust)
    entry = unpack(Path(path), trust=accepted)
    _check_sizes(entry)
    with as_described(f"what {path} holds"), no_garbage_collection():
        about = entry.about
        different = missing(about["needs"], with_code=accepted is not None)
        if state is None and not about["weights"]:
            different.append("it was saved without the weights, so it needs `state`")
        if state is not None:
            state = state if isinstance(state, tuple) else (state,)
            different += mismatches(about["state"], state)
        if different:
            raise StaleArtifact(
                f"{path} does not fit:\n  " + "\n  ".join(different) + "\nSave it again from where it was made."
            )
        chosen = None if accepted is not None else chosen or _backend(None)
        if state is not None:
            return _loaded(entry, state, path, how, chosen, is_bare=False)
        with entry.taken(_TENSORS) as data:
            state = stand_ins(about["state"], tensors_from_bytes(data))
            return _loaded(entry, state, path, how, chosen, is_bare=True)


def _check_sizes(entry: Entry) -> None:
    """Refuse a file whose parts do not fit into memory before any of them is read. A file of zeros costs nothing."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for blob in entry.header.blobs:
        most = min(memory, MOST_OBJECTS_BYTES if blob.name == OBJECTS else memory)
        if blob.length > most:
            raise CorruptArtifact(
                f"{entry.source.where} has {blob.length} bytes in its blob {blob.name!r}; the most that is read here "
                f"is {most}. Nothing of it was used."
            )


def _accepted(path: Path, trust: Any) -> tuple[Trust | None, str]:
    """The keys one of which must have signed a file whose code is used, None if its code is not; and why."""
    if trust is not None:
        return as_trust(trust), "the code in the file, signed by a key of trust="
    signature = read_header(path).signature
    if signature is None:
        return None, "built here from the data in the file, which nobody has signed"
    known = [(label, Trust((key,))) for label, key in labelled()]
    label, accepted = next(((name, one) for name, one in known if one.knows(signature)), ("", None))
    if accepted is None:
        return (
            None,
            f"built here from the data in the file, which is signed by {signature}, a key that you do not trust",
        )
    return accepted, f"the code in the file, signed by {label}"


def _backend(given: str | Backend | None) -> Backend:
    from foregrad.backends.choose import choose

    return choose(given)


def _loaded(
    entry: Entry, state: tuple[Any, ...], path: str | Path, how: str, backend: Backend | None, *, is_bare: bool
) -> Loaded:
    restore = restorer_of(entry.blob, StatePlaces(state, None), backend=backend)
    for one in state:
        if isinstance(one, Optimizer):
            tell_it_steps(one)
    roots = [capture["bare" if is_bare else "call"] for capture in entry.about["captures"]]
    makers = [partial(_made, restore, root, str(path), how) for root in roots]
    return Loaded(entry.about, makers, state, str(path), how, is_bare)


def _made(restore: Callable[[Any], Callable[..., Any]], root: Any, path: str, how: str) -> Callable[..., Any]:
    try:
        return with_these_threads(restore(root))
    except UntrustedArtifact as error:
        raise UntrustedArtifact(f"{path} would be {how}, but {error}") from None


def signature_of(program: Program) -> dict[str, Any]:
    """Names, roles and specs of what enters and leaves, as text."""
    signature = program.signature
    return {
        side: [{"role": one.role, "name": one.name, "spec": str(one.spec)} for one in values]
        for side, values in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
