"""Questions as JSON: what Python asked of the data in a call that is kept, and what it was told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from foregrad.core.errors import CorruptArtifact
from foregrad.record.questions import SIZES, TRUTH, VALUES, Question


def digest_of_answers(questions: Sequence[Question]) -> str:
    """What tells a path from others of the same function; empty if nothing was asked."""
    if not questions:
        return ""
    known = [[one.kind, _answer_to_json(one), one.line] for one in questions]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def questions_to_json(questions: Sequence[Question]) -> list[Any]:
    return [[one.op, one.kind, _answer_to_json(one), one.text, one.line] for one in questions]


def questions_of(data: Any) -> tuple[Question, ...]:
    try:
        return tuple(
            Question(int(op), str(kind), _answer_from_json(kind, answer), str(text), str(line))
            for op, kind, answer, text, line in data
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptArtifact(f"what was asked of the data is damaged: {error}") from error


def _answer_to_json(one: Question) -> Any:
    if one.kind == VALUES:
        return one.answer.hex()
    if one.kind == SIZES:
        return [[list(size), list(stride), str(dtype).removeprefix("torch.")] for size, stride, dtype in one.answer]
    return one.answer


def _answer_from_json(kind: str, data: Any) -> Any:
    if kind == VALUES:
        return bytes.fromhex(data)
    if kind == SIZES:
        return tuple((tuple(map(int, size)), tuple(map(int, stride)), _dtype(name)) for size, stride, name in data)
    if kind != TRUTH:
        raise ValueError(f"there is no question of the kind {kind!r}")
    return bool(data)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return found
