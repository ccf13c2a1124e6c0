"""`python -m tests.conformance.compatibility foregrad=FILE ...` writes `docs/compatibility.md`.

The files are what `python -m tests.conformance ... --results FILE` has kept, one for each subject. The first is ours:
it has a table of all that it has tried, and what it refuses is listed. A second table has what all have tried.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
Found = dict[tuple[str, str], dict[str, Any]]
OUTCOMES = {"passed": "works", "refused": "refused", "failed": "wrong or raises"}


def main(arguments: list[str]) -> None:
    subjects = {name: _read(Path(path)) for name, path in (argument.split("=", 1) for argument in arguments)}
    PAGE.write_text(page(subjects))


def page(subjects: dict[str, Found]) -> str:
    """The text: counts side by side, then what the first subject does not do."""
    title, ours = next(iter(subjects.items()))
    tried = [name for name in sorted(ours) if ours[name]["status"] != "excluded"]
    common = [name for name in tried if all(name in found for found in subjects.values())]
    built = [name for name in common if all(found[name]["status"] != "excluded" for found in subjects.values())]
    lines = ["# What works with models and loops of others", "", *_INTRODUCTION, ""]
    lines += [f"{len(tried)} models and loops that run in eager:", "", *_table({title: ours}, tried), ""]
    lines += [f"## Beside torch.compile\n\n{len(built)} of them, which all columns have tried:", ""]
    lines += _table(subjects, built)
    lines += ["", f"## What {title} does not do", "", *_reasons(ours, sorted(ours))]
    lines += ["", "## What does not run in eager, and is not counted", "", *_not_built(ours, sorted(ours))]
    return "\n".join(lines) + "\n"


_INTRODUCTION = (
    "`make libraries` writes this page. Models of `transformers` have small random configurations and defaults",
    "otherwise: cache on, padding and labels as a tokenizer gives them. Loss and all gradients are compared with",
    "eager on three batches of two shapes, in training and in evaluation, dropout with the same seed. `foregrad`",
    'has `backend="eager"` and is compared bit for bit; `torch.compile` has `backend="aot_eager"` and is compared',
    "to rounding. a column `torch-default`, if there is one, may run Python between its graphs.",
    "A class works if all of that does.",
    "A run may be a sample (`--sample N`): what it has not tried is not here.",
)


def _read(path: Path) -> Found:
    """By group and name; of results that were kept twice, the last."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["group"], row["name"]): row for row in rows}


def _table(subjects: dict[str, Found], names: list[tuple[str, str]]) -> list[str]:
    lines = ["| | count | " + " | ".join(f"{name}: {', '.join(OUTCOMES.values())}" for name in subjects) + " |"]
    lines += ["|---|---:|" + "---:|" * len(subjects)]
    for group in (*dict.fromkeys(group for group, _ in names), None):
        members = [name for name in names if group in (None, name[0])]
        counts = [Counter(found[name]["status"] for name in members) for found in subjects.values()]
        cells = [", ".join(str(count[status]) for status in OUTCOMES) for count in counts]
        lines.append(f"| {group or '**all**'} | {len(members)} | {' | '.join(cells)} |")
    return lines


def _reasons(found: Found, names: list[tuple[str, str]]) -> list[str]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if found[name]["status"] in ("refused", "failed"):
            status, reason = found[name]["status"], _first_line(found[name]["reason"])
            grouped[f"{OUTCOMES[status]}: {reason}"].append(" ".join(name))
    ordered = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"- {len(members)}, {reason}\n  {', '.join(members)}" for reason, members in ordered]


def _not_built(found: Found, names: list[tuple[str, str]]) -> list[str]:
    left_out = [name for name in names if found[name]["status"] == "excluded"]
    return [f"- {' '.join(name)}: {_first_line(found[name]['reason'])}" for name in left_out]


def _first_line(reason: str) -> str:
    """Without the folders above a package, and without what to do about it."""
    short = re.sub(r"\S*/site-packages/|\S*/(?=tests/)", "", reason)
    short = re.sub(r",? (module \S+ )?called at .*| Keep the computation in tensors.*", "", short)
    return re.sub(r"^(training|train|eval): (CaptureError: )?", "", short)[:240]


if __name__ == "__main__":
    main(sys.argv[1:])
