"""Paths: the programs of a function that asks the data, as a tree of questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foregrad.record.questions import Question


@dataclass(frozen=True)
class Path:
    """One way through a function: what was asked on it, and how many calls have gone it."""

    program: int  # its number among the captures
    questions: tuple[Question, ...]
    calls: int


@dataclass(frozen=True)
class Asked:
    """A question that was asked after the same answers, and where each answer leads: to further questions, if any."""

    line: str
    answers: tuple[tuple[str, int, tuple[Asked, ...], tuple[int, ...]], ...]  # text, calls, what follows, programs

    def lines(self) -> list[str]:
        found = [self.line]
        for text, calls, following, programs in self.answers:
            leads = f" -> program {', '.join(map(str, programs))}" if programs else ""
            found.append(f"   {text}: {calls} call{'' if calls == 1 else 's'}{leads}")
            found += [f"      {line}" for asked in following for line in asked.lines()]
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "line": self.line,
            "answers": [
                {
                    "answer": text,
                    "calls": calls,
                    "programs": list(programs),
                    "asked": [one.as_json() for one in following],
                }
                for text, calls, following, programs in self.answers
            ],
        }


def tree_of(paths: Sequence[Path], depth: int = 0) -> tuple[Asked, ...]:
    """What was asked at a depth, in the order of the captures; paths have the same answers up to there."""
    by_line: dict[str, dict[Any, list[Path]]] = {}
    for path in paths:
        if len(path.questions) > depth:
            question = path.questions[depth]
            by_line.setdefault(question.line, {}).setdefault(question.known, []).append(path)
    return tuple(
        Asked(line, tuple(_answer(some, depth) for some in answers.values())) for line, answers in by_line.items()
    )


def _answer(paths: list[Path], depth: int) -> tuple[str, int, tuple[Asked, ...], tuple[int, ...]]:
    ends = tuple(path.program for path in paths if len(path.questions) == depth + 1)
    return paths[0].questions[depth].text, sum(path.calls for path in paths), tree_of(paths, depth + 1), ends
