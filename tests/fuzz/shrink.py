"""Shrinking: remove whatever a failing program does not need to fail in the same way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests.fuzz.program import FuzzProgram, Scenario


def shrink(program: FuzzProgram, verdict_of: Callable[[FuzzProgram], str | None]) -> FuzzProgram:
    """The smallest program found by single removals that still fails for the same cause."""
    wanted = cause(verdict_of(program))
    smaller: FuzzProgram | None = program
    while smaller:
        program = smaller
        smaller = next((p for p in removals(program) if has_its_names(p) and cause(verdict_of(p)) == wanted), None)
    return program


def cause(verdict: str | None) -> str | None:
    """A verdict without its names and numbers, so that like failures have like causes."""
    if verdict is None:
        return None
    what = verdict.split("\n")[0].split(": eager")[0]
    what = re.sub(r"backward of [^:]*", "backward", what)
    what = re.sub(r"output(\[[^ ]*\])?", "output", what)
    what = re.sub(r"\b[a-d](_base|_leaf)*\b", "input", what)
    error = re.search(r", compiled (\w+: )?(\w*(Error|Exception) \([^\n]{,60})", verdict)
    return re.sub(r"\d+", "N", f"{what}: compiled raises {error[2]}" if error else what)


def removals(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Every program that is one step simpler, statements first."""
    for name in ("body", "returns", "arguments", "setup"):
        items = getattr(program, name)
        for at in reversed(range(len(items))):
            if name != "returns" or len(items) > 1:
                yield program.but(**{name: items[:at] + items[at + 1 :]})
    for field in ("backward", "write", "calls", "repeats", "marks"):
        simple = getattr(Scenario(), field)
        if getattr(program.scenario, field) != simple:
            yield program.but(scenario=replace(program.scenario, **{field: simple}))
    if program.container not in ("tuple", "single"):
        yield program.but(container="tuple")
    for at, statement in enumerate(program.body):
        if statement.blocks:
            simpler = replace(statement, blocks=statement.blocks[:-1])
            yield program.but(body=(*program.body[:at], simpler, *program.body[at + 1 :]))


def has_its_names(program: FuzzProgram) -> bool:
    """Whether every name that the program uses is still made before."""
    scope = program.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            arguments, _ = scope["make_inputs"]()
            scope["fn"](*arguments)
        except NameError:
            return False
        except Exception:  # anything else is the comparer's business
            return True
        finally:
            torch.set_grad_enabled(True)
    return True
