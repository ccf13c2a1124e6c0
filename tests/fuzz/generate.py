"""`program(seed)`: a random small PyTorch program, the same for the same seed.

The program runs in eager PyTorch while it is built. A statement that eager refuses is dropped, but now and
then one is kept as the last, so that exceptions are compared too.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.fuzz import inputs
from tests.fuzz.draws import DRAWING
from tests.fuzz.program import FUNCTIONS, HEADER, FuzzProgram, Scenario, Statement, render
from tests.fuzz.questions import QUESTIONING
from tests.fuzz.scope import Scope
from tests.fuzz.statements import WRITERS

Table = dict[Callable[[Scope], str], float]
KEPT_REFUSALS = 0.04  # of refused statements; gives about 3 % of programs that raise
REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)
#: What eager warns of: `index_put_` and the like on a tensor some of whose elements are one place in memory, where the
#: order of its kernel decides. foregrad refuses that, and no program has it.
DEPRECATED = "Use of .* on expanded tensors is deprecated"
PARAMETERS = "abcd"
NUM_DATA = 3  # so many inputs does a program run on while it is built that asks the data
RETURN_FORMS = (
    *("{}.detach()", "{}.view_as({})", "{}[0]", "{}.unsqueeze(0)", "{}.t()", "{}.t()", "{} * 2"),
    *("{}.shape[-1]", "7", '"text"'),
)
ASKING_FORMS = (
    *("{}.sum().item()", "{}.mean().item() * 2", "bool({}.sum() > 0.5)", "{}.tolist()", "int({}.numel() + {}.sum())"),
    *("{}[{} > 0.2]", "[{}.sum().item(), {}.sum()]", 'f"{{}.sum().item():.2f}"', "{}.shape[0] + ({} > 0).sum().item()"),
)

_base_scope: dict[str, Any] = {}
exec(HEADER + "\n".join(FUNCTIONS.values()), _base_scope)


#: What programs are about, and the statements that they are made of.
TABLES = {"views": WRITERS, "draws": DRAWING, "questions": QUESTIONING}


def program(seed: int, about: str = "views") -> FuzzProgram:
    rng = random.Random(seed)
    asks = about == "questions"
    everywhere = [dict(_base_scope) for _ in range(NUM_DATA if asks else 1)]
    _base_scope["generator"].manual_seed(seed)
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", DEPRECATED)
        setup, arguments = make_setup(rng, everywhere)
        scope = Scope(rng, everywhere[0], [name for name, _ in arguments], everywhere[1:])
        body = make_body(scope, TABLES[about])
        returns = make_returns(scope, (*RETURN_FORMS, *ASKING_FORMS) if asks else RETURN_FORMS)
    container = "single" if len(returns) == 1 else rng.choice(("tuple", "tuple", "tuple", "list", "dict", "nested"))
    scenario = make_drawing_scenario(rng, body) if about == "draws" else make_scenario(rng)
    if asks:
        scenario = replace(scenario, calls="many")
    return FuzzProgram(seed, tuple(setup), arguments, tuple(body), returns, container, scenario)


def make_setup(
    rng: random.Random, everywhere: Sequence[dict[str, Any]]
) -> tuple[list[Statement], tuple[tuple[str, str], ...]]:
    setup: list[Statement] = []
    arguments: list[tuple[str, str]] = []
    for name in PARAMETERS[: rng.choice((1, 2, 2, 3, 3, 4))]:
        given = [expression for _, expression in arguments]
        if given and rng.random() < 0.08:
            for values in everywhere:
                values[name] = values[arguments[-1][1]]
            arguments.append((name, given[-1]))
            continue
        lines = None
        while lines is None or not runs(lines, everywhere):
            lines = inputs.candidates(rng, name, [s.target for s in setup])
        setup += lines
        arguments.append((name, name))
    rng.shuffle(arguments)
    return setup, tuple(arguments)


def make_body(scope: Scope, table: Table) -> list[Statement]:
    rng, values = scope.rng, scope.values
    body: list[Statement] = []
    blocks: tuple[str, ...] = ()
    for _ in range(rng.choice((2, 3, 4, 5, 6, 7, 8, 10, 12))):
        blocks = next_blocks(rng, blocks)
        statement, refused = make_statement(scope, blocks, table)
        body.append(statement)
        if refused:
            break
        if statement.target.startswith("v") and statement.target not in scope.names and statement.target in values:
            scope.names.append(statement.target)
    return body


def next_blocks(rng: random.Random, blocks: tuple[str, ...]) -> tuple[str, ...]:
    """The `with` blocks of the next statement: stay, open one, or leave one."""
    chance = rng.random()
    if not blocks:
        return ("torch.no_grad()",) if chance < 0.07 else ()
    if chance < 0.45:
        return blocks[:-1]
    return (*blocks, "torch.enable_grad()") if chance > 0.9 and len(blocks) == 1 else blocks


def make_statement(scope: Scope, blocks: tuple[str, ...], table: Table) -> tuple[Statement, bool]:
    """A statement that eager runs, or rarely one that it refuses."""
    writers, weights = list(table), list(table.values())
    while True:
        writer = scope.rng.choices(writers, weights)[0]
        try:
            statement = Statement(writer.__name__, writer(scope), blocks)
        except LookupError:
            continue
        try:
            if runs([statement], scope.everywhere):
                return statement, False
        except UserWarning:
            continue
        if scope.rng.random() < KEPT_REFUSALS:
            return statement, True


def make_returns(scope: Scope, forms: tuple[str, ...]) -> tuple[str, ...]:
    """Up to four variables, rather late and differentiable ones; views, repeats and plain values too."""
    rng = scope.rng
    made = [n for n in scope.names if n not in PARAMETERS]
    differentiable = [n for n in made if scope.values[n].requires_grad]
    pools = [pool for pool in (differentiable[-4:], differentiable[-2:], made[-4:], scope.names) if pool]
    returns = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        name = rng.choice(rng.choice(pools))
        text = rng.choice(forms).replace("{}", name)
        is_plain = rng.random() > 0.15 or not runs([Statement("return", text)], scope.everywhere)
        returns.append(name if is_plain else text)
    return tuple(returns)


def make_scenario(rng: random.Random) -> Scenario:
    return Scenario(
        backward=rng.choice(("all", "all", "all", "some", "some", "create_graph", "arguments")),
        write=rng.choice(("", "", "", "", "output", "argument")),
        calls=rng.choice(("once", "once", "twice", "interleaved")),
    )


def make_drawing_scenario(rng: random.Random, body: list[Statement]) -> Scenario:
    """No writes by the caller: what is computed again from a tensor that was written is refused. A selective checkpoint
    goes back once only."""
    is_selective = any("selective" in statement.text for statement in body)
    return Scenario(
        backward=rng.choice(("all", "all", "all", "some") if is_selective else ("all", "all", "some", "create_graph")),
        calls=rng.choice(("once", "twice", "interleaved", "interleaved")),
        repeats=1 if is_selective else rng.choice((1, 1, 2)),
        marks=rng.choice((0.0, 0.2, 0.5, 0.8, 1.0)),
    )


def runs(statements: list[Statement], everywhere: Sequence[dict[str, Any]]) -> bool:
    for values in everywhere:
        try:
            exec(render(stays(statement) for statement in statements), values)
        except REFUSALS:
            return False
    return True


def stays(statement: Statement) -> Statement:
    """A statement that does not leave the function."""
    return (
        replace(statement, text=f"{statement.text.rpartition(': ')[0]}: pass")
        if statement.kind == "early"
        else statement
    )
