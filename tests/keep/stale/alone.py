"""Each form by itself, as plainly as it can be, with each of its edits and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.keep.stale.form import Takes
from tests.keep.stale.packages import FORMS, Level, Package, can_change, edits_of


def alone(home: str = "main") -> Iterator[Package]:
    """Every form as it is, with each of its edits, changed in a running process, and with a number from outside."""
    for name, form in FORMS.items():
        levels = (
            (Level(name, home),) if form.takes is Takes.NOTHING else (Level("value: literal", home), Level(name, home))
        )
        package = Package((levels,))
        yield package
        for edit in edits_of(package):
            yield replace(package, edit=edit)
        for depth in range(len(levels)):
            if can_change(levels, depth):
                yield replace(package, change=(0, depth))
        if len(levels) > 1:  # no file says what is in it: it must be found where it is
            levels = (Level("value: environment at import", home), Level(name, home))
            yield Package((levels,), edit="v0")
