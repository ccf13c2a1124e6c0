"""Packages: forms in each other, spread over modules of the user's and installed ones, and one edit."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.keep.stale.containers import CONTAINERS
from tests.keep.stale.form import Form, Takes, edited, edits_in, fill
from tests.keep.stale.libraries import BASE, distribution_of
from tests.keep.stale.numbers import NUMBERS
from tests.keep.stale.patches import PATCHES
from tests.keep.stale.reached import REACHED
from tests.keep.stale.readers import READERS
from tests.keep.stale.values import VALUES

FORMS: dict[str, Form] = {
    **{f"value: {name}": form for name, form in VALUES.items()},
    **{f"container: {name}": form for name, form in CONTAINERS.items()},
    **{f"number: {name}": form for name, form in NUMBERS.items()},
    **{f"patch: {name}": form for name, form in PATCHES.items()},
    **{f"patch: {name}": form for name, form in REACHED.items()},
    **{f"reader: {name}": form for name, form in READERS.items()},
}

#: Modules, each of which may import those before it, and their files. The first three are installed.
HOMES = {
    "fakedep": "fakedep/__init__.py",
    "fakens.one": "fakens/one/__init__.py",
    "fakelib.core": "fakelib/core.py",
    "config": "config.py",
    "pkg.sub.deep": "pkg/sub/deep.py",
    "main": "main.py",
}
INSTALLED = ("fakedep", "fakens.one", "fakelib.core")
STYLES = ("module", "from", "as", "late", "sys")

_PRELUDE = "import os\nimport torch\nHERE = os.path.dirname(os.path.abspath(__file__))\n"


@dataclass(frozen=True)
class Level:
    """A form, the module that it stands in, how it names what it holds, and whether a function makes it."""

    form: str
    home: str = "main"
    style: str = "module"
    is_made: bool = False


@dataclass(frozen=True)
class Package:
    """Chains of forms, each beginning with a number; `edit` is what changes between two processes, `change` the chain and
    the level that a statement changes within one."""

    chains: tuple[tuple[Level, ...], ...]
    edit: str | None = None
    change: tuple[int, int] | None = None
    is_rebuilt: bool = False  # an upgrade keeps the version

    def __str__(self) -> str:
        chains = [
            "\n    ".join(f"{one.form} ({one.home}, {one.style}{', made' * one.is_made})" for one in chain)
            for chain in self.chains
        ]
        return "\n  + ".join(["", *chains]) + f"\n  edit: {self.edit!r}, change: {self.change}"


@dataclass
class Written:
    """The files of a package with the marks of its edits, and what changes it in a running process."""

    files: dict[str, str] = field(default_factory=dict)
    installed: dict[str, str] = field(default_factory=lambda: dict(BASE))
    outside: dict[str, str] = field(default_factory=dict)  # `env:NAME`, `argv:0`

    def texts(self) -> dict[str, str]:
        return {
            **{f"source/{name}": text for name, text in self.files.items()},
            **{f"site/{name}": text for name, text in self.installed.items()},
            **self.outside,
        }

    def at(self, edit: str | None) -> Written:
        """Without marks: before (None) or after an edit."""
        sides = [
            {name: edited(text, edit) for name, text in part.items()}
            for part in (self.files, self.installed, self.outside)
        ]
        return Written(*sides)


@dataclass(frozen=True)
class Top:
    """The latest object of a chain: where it is bound, under which name, and the forms to read through."""

    home: str
    name: str
    reads: tuple[str, ...]

    @property
    def needs_x(self) -> bool:
        return any(re.search(r"\bx\b", read) for read in self.reads)


def write(package: Package) -> Written:
    """All files of a package."""
    written = Written()
    bodies: dict[str, list[str]] = {home: [] for home in HOMES}
    terms, number = [], 0
    changes = ["def change():", "    pass"]
    for place, chain in enumerate(package.chains):
        tops: list[Top] = []
        for level in chain:
            top = tops[-1] if tops else None
            _add(written, bodies[level.home], level, top, number, _old_and_new(number))
            tops.append(_top(level, top, number))
            number += 1
        terms.append(_read(bodies["main"], tops[-1], "main", "module"))
        if package.change is not None and package.change[0] == place:
            changes += textwrap.indent(_change(chain, tops, package.change[1], number), "    ").splitlines()
            number += 100
    body = " + ".join(f"x * ({term}) + ({term})" for term in terms)
    bodies["main"].append(f"def f(x):\n    return {body}")
    for home, lines in bodies.items():
        part = written.installed if home in INSTALLED else written.files
        if lines:
            part[HOMES[home]] = part.get(HOMES[home], "") + _PRELUDE + "\n".join(lines) + "\n"
    written.files["pkg/__init__.py"] = written.files["pkg/sub/__init__.py"] = ""
    written.files["changes.py"] = f"{_PRELUDE}import sys\n" + "\n".join(changes) + "\n"
    return written


def _old_and_new(number: int) -> tuple[int, int]:
    return 2 + number % 7, 12 + number % 5


def _add(
    written: Written, lines: list[str], level: Level, top: Top | None, number: int, value: tuple[int, int]
) -> None:
    form, n = FORMS[level.form], str(number)
    mark = f"⟦#v{n}#{value[0]}¦{value[1]}⟧"
    head = form.head
    inner = "" if top is None else _inner(lines, form, top, level)
    if level.is_made and not form.is_flat and form.takes is not Takes.VALUE:
        parameter = "" if top is None else f"e{n}"
        made = textwrap.indent(fill(head, n=n, e=parameter, v=mark), "    ")
        lines.append(f"def make_{n}({parameter}):\n{made}\n    return o{n}\no{n} = make_{n}({inner})")
    else:
        lines.append(fill(head, n=n, e=inner, v=mark))
    is_installed = level.home in INSTALLED
    for name, text in form.files.items():
        name, text = fill(name, n=n), fill(text, n=n, v=mark)
        if name.startswith(("env:", "argv:")):
            written.outside[name] = text
            continue
        folder = HOMES[level.home].rpartition("/")[0]
        place = name.removeprefix("root:") if name.startswith("root:") else f"{folder}/{name}".lstrip("/")
        (written.installed if is_installed else written.files)[place] = text


def _inner(lines: list[str], form: Form, top: Top, level: Level) -> str:
    """What a form holds, as its module names it."""
    if form.takes is Takes.OBJECT:
        return _name(lines, top, level.home, level.style)
    value = _read(lines, top, level.home, level.style)
    is_plain = form.takes is Takes.VALUE or top.reads == ("$o",)
    return value if is_plain else f"(int(abs({value}) * 64) % 97 + 2)"


def _name(lines: list[str], top: Top, home: str, style: str) -> str:
    if top.home == home:
        return top.name
    alias = f"{top.name}_home"
    if style == "from":
        lines.append(f"from {top.home} import {top.name}")
        return top.name
    if style == "as":
        lines.append(f"import {top.home} as {alias}")
        return f"{alias}.{top.name}"
    if style == "late":
        return f"__import__({top.home!r}, fromlist=['x']).{top.name}"
    if style == "sys":
        lines.append(f"import sys, {top.home}")
        return f"sys.modules[{top.home!r}].{top.name}"
    lines.append(f"import {top.home}")
    return f"{top.home}.{top.name}"


def _read(lines: list[str], top: Top, home: str, style: str) -> str:
    return _through(_name(lines, top, home, style), top.reads)


def _through(name: str, reads: tuple[str, ...]) -> str:
    for read in reads:
        name = fill(read, o=name)
    return name


def _top(level: Level, top: Top | None, number: int) -> Top:
    form = FORMS[level.form]
    own = fill(form.read, n=str(number))
    inner = top.reads if top is not None and form.takes is Takes.OBJECT else ()
    return Top(level.home, f"o{number}", (own, *inner))


def _change(chain: tuple[Level, ...], tops: list[Top], depth: int, number: int) -> str:
    """Statements that put another value in the place of what a level of a running chain holds."""
    lines: list[str] = ["import sys"]
    inner: Top | None = None
    for level in chain[:depth] or ():
        here = replace(level, home="changes", is_made=False)
        form, n = FORMS[level.form], str(number)
        lines.append(fill(form.head, n=n, e="" if inner is None else _inner(lines, form, inner, here), v="17"))
        inner, number = _top(here, inner, number), number + 1
    form = FORMS[chain[depth].form]
    new = "17" if inner is None else _inner(lines, form, inner, Level("", "changes"))
    outer = tops[-1]
    target = f"sys.modules[{outer.home!r}].{outer.name}"
    through = len(outer.reads) - len(tops[depth].reads)
    target = _through(target, outer.reads[:through]) if through > 0 else target
    n = tops[depth].name.removeprefix("o")
    if form.change:
        lines.append(fill(form.change, o=target, e=new, n=n))
    else:
        lines.append(f"sys.modules[{tops[depth].home!r}].{tops[depth].name} = {new}")
    return "\n".join(lines)


def can_change(chain: tuple[Level, ...], depth: int) -> bool:
    """Whether a level can be changed in a running process: it can be reached from the last one, and what it would hold
    can be made anew."""
    outer = chain[depth + 1 :]
    reaches = all(FORMS[one.form].takes is Takes.OBJECT for one in outer)
    inner = chain[:depth]
    plain = all(not FORMS[one.form].files and not FORMS[one.form].is_flat for one in inner)
    form = FORMS[chain[depth].form]
    return reaches and plain and (bool(form.change) or (depth == 0 and len(chain) == 1 and form.read == "$o"))


def edits_of(package: Package) -> list[str]:
    return edits_in(write(package).texts())


def versions(before: Written, after: Written, is_rebuilt: bool) -> Mapping[str, str]:
    """The versions of installed distributions after an edit."""
    changed = {distribution_of(name) for name, text in after.installed.items() if before.installed.get(name) != text}
    return dict.fromkeys(changed, "1.0" if is_rebuilt else "1.1")


def fits(form: Form, top: Top | None) -> bool:
    """Whether a form can hold what a chain has come to."""
    if top is None:
        return form.takes is Takes.NOTHING
    if form.takes is Takes.NUMBER:
        return not top.needs_x
    return form.takes is not Takes.NOTHING


def is_whole(chain: tuple[Level, ...]) -> bool:
    """Whether each form of a chain can hold what comes before it."""
    top: Top | None = None
    for number, level in enumerate(chain):
        if not fits(FORMS[level.form], top):
            return False
        top = _top(level, top, number)
    return True


def only_for_users(form: Form) -> bool:
    return "fakelib" in form.head + form.read or "fakens" in form.head


def random_chain(rng: random.Random) -> tuple[Level, ...]:
    """One to six forms in each other."""
    chain: list[Level] = []
    top: Top | None = None
    home = rng.choices(list(HOMES), [1, 1, 1, 4, 4, 6])[0]
    for number in range(rng.choice([1, 2, 2, 3, 3, 4, 5, 6])):
        homes = list(HOMES)[list(HOMES).index(home) :]
        home = home if rng.random() < 0.6 else rng.choice(homes)
        kind = "value" if top is None else rng.choice(["container", "container", "number", "reader", "patch"])
        name = rng.choice([name for name in FORMS if name.startswith(kind)])
        if top is None and rng.random() < 0.5:
            name = "value: literal"
        form = FORMS[name]
        if not fits(form, top):
            continue
        if only_for_users(form) and home in INSTALLED:
            home = rng.choice(["config", "pkg.sub.deep", "main"])
        level = Level(name, home, rng.choice(STYLES), rng.random() < 0.2)
        top = _top(level, top, number)
        chain.append(level)
    return tuple(chain)


def random_package(seed: int) -> Package:
    """Chains and an edit. One in four is left as it is, one in four changes in a running process."""
    rng = random.Random(seed)
    chains = tuple(random_chain(rng) for _ in range(rng.choice([1, 1, 2, 3])))
    package = Package(chains, is_rebuilt=rng.random() < 0.3)
    kind = rng.random()
    if kind < 0.25:
        return package
    places = [(i, j) for i, chain in enumerate(chains) for j in range(len(chain)) if can_change(chain, j)]
    if kind < 0.5 and places:
        return replace(package, change=rng.choice(places))
    return replace(package, edit=rng.choice(edits_of(package)))
