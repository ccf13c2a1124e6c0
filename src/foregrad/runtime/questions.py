"""Questions of a call: a program is for calls in which Python would be told what it was told at capture.

    q_all, = ask(known, None, o1)
    if bool(q_all) is not True: return MISS  # model.py:12

What the pieces of the forward compute is passed on to the rest, and in `known` to other paths that are tried for the
same call. Until the last answer nothing of the caller's has changed but generators, which are put back if an answer is
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.source import Source
from foregrad.program.pieces import Piece
from foregrad.record.questions import SIZES, TRUTH, Question, bytes_of
from foregrad.runtime.sentinels import MISS

#: The name of a value of a piece, in a generated call.
PASSED_ON = "q_{}"

States = list[tuple[torch.Generator, torch.Tensor]]

#: What pieces have computed in one call: by what they compute and of what, the results of ops, and where generators
#: are then.
Known = dict[Any, tuple[dict[int, Any], States]]


class SharedPiece:
    """A piece of several paths that begin alike: it gives the results of those ops that any of them needs."""

    def __init__(self, run: Callable[..., Any], gives: tuple[int, ...], look: str) -> None:
        self.now = run, gives
        self.look = look

    @property
    def run(self) -> Callable[..., Any]:
        return self.now[0]

    @property
    def gives(self) -> tuple[int, ...]:
        return self.now[1]


#: The pieces of a function by what they compute, and by what runs them.
SharedPieces = dict[tuple[str, str], SharedPiece]


@dataclass(frozen=True, eq=False)
class Ask:
    """A piece as one path calls it. What another path has computed in the same call is not computed again."""

    piece: SharedPiece
    wanted: tuple[int, ...]

    def __call__(self, known: Known | None, states: States | None, *inputs: Any) -> tuple[Any, ...]:
        piece = self.piece
        run, gives = piece.now
        if known is None:
            results = dict(zip(gives, run(*inputs), strict=True))
            return tuple([results[place] for place in self.wanted])
        key = (piece.look, *[id(one) if isinstance(one, torch.Tensor) else one for one in inputs])
        found = known.get(key)
        if found is not None and all(place in found[0] for place in self.wanted):
            put_back(found[1])
        else:
            made = dict(zip(gives, run(*inputs), strict=True))
            found = known[key] = made, [(one, one.get_state()) for one, _ in states or ()]
        return tuple([found[0][place] for place in self.wanted])


def emit_pieces(
    source: Source,
    pieces: Sequence[tuple[Piece, Ask]],
    name_of: Callable[[str], str],
    below_autograd: Callable[[Piece, Any], AbstractContextManager[None]],
) -> None:
    """Emit what finds out whether a program is for this call; each piece with what runs it."""
    draws = any(piece.draws for piece, _ in pieces)
    missed, states = "MISS", "None"
    if draws:
        generators = [torch.default_generator, *_generators(pieces)]
        names = "".join(f"{source.name('generator', one)}, " for one in generators)
        source.line(f"states = {source.name('generator_states', generator_states)}({names})")
        states = "states"
        missed = f"{source.name('put_back', put_back)}(states)"
    with source.block("try:"):
        for piece, run in pieces:
            if piece.num_ops:
                targets = "".join(f"{PASSED_ON.format(name)}, " for name in piece.outputs)
                moved = states if piece.draws else "None"
                arguments = ", ".join(["known", moved, *map(name_of, piece.inputs)])
                with below_autograd(piece, run.piece.run):
                    source.line(f"{targets}= {source.name('ask', run)}({arguments})")
            for question, values in piece.asks:
                condition = _condition(source, question, [PASSED_ON.format(name) for name in values])
                source.line(f"if {condition}: return {missed}  # {_remark(question)}")
    with source.block("except Exception:"):
        source.line(f"return {missed}")  # the function itself raises it


def _condition(source: Source, question: Question, names: Sequence[str]) -> str:
    """What holds where the answer is another."""
    if question.kind == TRUTH:
        return f"bool({names[0]}) is not {question.answer}"
    if question.kind == SIZES:
        pairs = zip(names, question.answer, strict=True)
        return " or ".join(f"{name}.shape != {tuple(size)!r}" for name, (size, _, _) in pairs)
    return f"{source.name('bytes_of', bytes_of)}({names[0]}) != {question.answer!r}"


def _remark(question: Question) -> str:
    return " ".join(str(question).split())


def _generators(pieces: Sequence[tuple[Piece, Ask]]) -> list[torch.Generator]:
    nodes = [node for piece, _ in pieces for node in piece.graph.graph.nodes]
    return list({id(n.meta["generator"]): n.meta["generator"] for n in nodes if "generator" in n.meta}.values())


def generator_states(*generators: torch.Generator) -> States:
    """Where generators stand."""
    return [(one, one.get_state()) for one in generators]


def put_back(states: States) -> Any:
    """Generators as they were; the call is not for this program."""
    for generator, state in states:
        generator.set_state(state)
    return MISS
