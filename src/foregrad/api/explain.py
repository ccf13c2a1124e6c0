"""Explain: what a compiled function has captured so far, why, where it comes from, and why not from nearer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foregrad.api.captured import Capture
from foregrad.api.compiled import Compiled
from foregrad.api.compiled_module import CompiledForward, compiled_of
from foregrad.api.paths import Asked, Path, tree_of
from foregrad.cache.key.ingredients import Difference, differences
from foregrad.cache.serialize.cached_calls import NO_ENTRY, CaptureOrigin
from foregrad.cache.serialize.catalog import CatalogEntry, catalog, nearest_to
from foregrad.cache.serialize.loaded import Loaded, LoadedCapture
from foregrad.cache.store.cache import Cache


@dataclass(frozen=True)
class Explained:
    """One capture; where a cache had nothing for it, `nearest` is the entry most like it, and how it differs."""

    capture: Capture
    nearest: str | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def origin(self) -> CaptureOrigin:
        return self.capture.origin

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """What of it is not compiled, and runs op by op."""
        found = (one for half in self.capture.regions for region in half.distinct for one in region.fallbacks)
        return tuple(dict.fromkeys(map(str, found)))

    def lines(self) -> list[str]:
        lines = [f"{self.capture.reason} ({self.capture.num_nodes} nodes): {self.origin.found}"]
        lines += [f"   {line}" for reason in self.origin.reasons for line in reason.splitlines()]
        lines += [f"   frozen at capture: {line}" for line in self.capture.python.frozen]
        lines += [f"   at capture only: {str(change).strip()}" for change in self.capture.does]
        lines += [f"   for one call: {line}" for line in self.capture.once]
        lines += [f"   {line}" for line in self.capture.numbers]
        lines += [f"   {line}" for line in (self.capture.conditions.lines() if self.capture.conditions else ())]
        lines += [f"   {line}" for line in self.fallbacks]
        if self.nearest is not None:
            lines.append(f"   what differs from the nearest entry, {self.nearest[:12]}:")
            lines += [f"     {line}" for one in self.differences for line in str(one).splitlines()]
        return lines

    def as_json(self) -> dict[str, Any]:
        origin = {**vars(self.origin), "reasons": list(self.origin.reasons)}
        return {
            "reason": self.capture.reason,
            "nodes": self.capture.num_nodes,
            "origin": origin,
            "nearest": self.nearest,
            "fallbacks": list(self.fallbacks),
            "differences": [vars(one) for one in self.differences],
            "frozen": list(self.capture.python.frozen),
            "at capture only": list(self.capture.does),
            "for one call": list(self.capture.once),
        }


@dataclass(frozen=True)
class Explanation:
    """The captures of a compiled function, in order, each with its reason; `explained` says more of each."""

    name: str
    explained: tuple[Explained, ...]
    asked: tuple[Asked, ...] = ()  # of the data, as a tree

    @property
    def captures(self) -> tuple[Capture, ...]:
        return tuple(one.capture for one in self.explained)

    def __str__(self) -> str:
        count = len(self.explained)
        lines = [f"{self.name}: {count} captured program{'' if count == 1 else 's'}"]
        for number, one in enumerate(self.explained, 1):
            first, *rest = one.lines()
            lines += [f"  {number}. {first}", *(f"  {line}" for line in rest)]
        if self.asked:
            lines.append("  what Python asks of the data:")
            lines += [f"     {line}" for one in self.asked for line in one.lines()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        captures = [one.as_json() for one in self.explained]
        return {"name": self.name, "captures": captures, "asked": [one.as_json() for one in self.asked]}


@dataclass(frozen=True)
class LoadedExplanation:
    """The programs of a file, in the order in which they were captured: where they come from, and what they need."""

    name: str
    kind: str
    source: str
    provenance: dict[str, str]
    needs: dict[str, str]
    state: str
    captures: tuple[LoadedCapture, ...]

    @staticmethod
    def of(loaded: Loaded) -> LoadedExplanation:
        names = ", ".join(type(one).__name__ for one in loaded.state) or "nothing"
        state = "the weights in the file" if loaded.is_bare else f"what it was given: {names}"
        about = loaded.about
        return LoadedExplanation(
            loaded.name, loaded.kind, loaded.source, about["provenance"], about["needs"], state, loaded.captures
        )

    def __str__(self) -> str:
        count = len(self.captures)
        made = self.provenance
        return "\n".join(
            [
                f"{self.name}: a {self.kind} of {count} program{'' if count == 1 else 's'}, loaded from {self.source}",
                f"  saved {made.get('created', 'at an unknown time')} by foregrad {made.get('foregrad', 'unknown')}",
                f"  needs {', '.join(f'{name} {value}' for name, value in self.needs.items())}",
                f"  works on {self.state}",
                *(f"  {number}. {one.reason}" for number, one in enumerate(self.captures, 1)),
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**vars(self), "captures": [{"reason": one.reason} for one in self.captures]}


def explain(compiled: Any) -> Explanation | LoadedExplanation:
    """What a compiled function or module has captured so far: why, and where each program comes from.

    For one that a cache might have had, and had not, it also names what differs from the nearest entry there. Of what
    was loaded from a file it says which file, who wrote it, and what it needs.
    """
    if isinstance(compiled, Loaded):
        return LoadedExplanation.of(compiled)
    function = compiled_of(compiled) if isinstance(compiled, CompiledForward) else compiled
    if not isinstance(function, Compiled):
        raise TypeError(f"explain takes what fg.compile, fg.step or fg.load returned, not a {type(compiled).__name__}")
    captures = function.captures
    kept = _kept(function.options.cache) if any(map(_missed, captures)) else []
    later = [made.origin.key for made in captures]  # what was kept after a capture says nothing about it
    return Explanation(
        function.name,
        tuple(
            _explained(made, function.name, [one for one in kept if one.key not in later[number:]])
            for number, made in enumerate(captures)
        ),
        tree_of(
            [Path(n, made.questions, function.calls_of(made)) for n, made in enumerate(captures, 1) if made.questions]
        ),
    )


def _explained(made: Capture, name: str, kept: list[CatalogEntry]) -> Explained:
    if not _missed(made) or made.sources is None:
        return Explained(made)
    key = made.sources.key
    near = nearest_to(key, "call", name, kept)
    return Explained(made) if near is None else Explained(made, near.key, tuple(differences(near.ingredients, key)))


def _missed(made: Capture) -> bool:
    """Whether a cache was asked for this capture and had none."""
    return made.sources is not None and any(reason.startswith(NO_ENTRY) for reason in made.origin.reasons)


def _kept(cache: Cache) -> list[CatalogEntry]:
    try:
        return catalog(cache, near=True)
    except OSError:  # a server that is gone: nothing to compare with
        return []
