"""The command line of caches: `foregrad cache ls`, `explain`, `verify`, `gc`, `push`, `pull` and `stats`.

No torch is imported: what is said of an entry is what its header says.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foregrad.cache.format.keys import key_from_file
from foregrad.cache.format.show import printable, size_text
from foregrad.cache.serialize.catalog import (
    CatalogEntry,
    Comparison,
    by_prefix,
    catalog,
    compare,
    nearest_to,
    newest_call,
)
from foregrad.cache.store.cache import Cache, Copied, Counts, default_cache
from foregrad.cache.store.option_checks import named_place
from foregrad.process.folders import programs_folder

#: Of a key, as much as is shown; keys can be given by any beginning that only one has.
_SHOWN_DIGITS = 12


@click.group()
def cache() -> None:
    """Look into a cache of compiled programs, and look after it."""


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """A command on one cache, with the options that all of them have."""

    @functools.wraps(function)
    def run(place: str | None, key: Path | None, **rest: Any) -> None:
        try:
            function(open_cache(place, key), **rest)
        except (OSError, ValueError, LookupError, ImportError) as error:
            raise click.ClickException(printable(str(error))) from None

    run = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)
    run = click.option(
        "--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with the key of URLs."
    )(run)
    return click.option("--cache", "place", metavar="PLACE", help="A folder or URL; else this user's cache.")(run)


def open_cache(place: str | None, key: Path | None) -> Cache:
    """The cache at a place. Without one: what `FOREGRAD_CACHE` names, else this user's folder."""
    named = named_place()
    chosen = place or (named if named != "off" else None) or programs_folder()
    return Cache(chosen, key=key_from_file(key) if key else None)


@cache.command()
@_command
def ls(cache: Cache, as_json: bool) -> None:
    """List the entries, those that were used last first, as their headers describe them, and folders of code."""
    found = catalog(cache)
    if as_json:
        _print_json([kept.as_json() for kept in found])
        return
    rows = [
        (
            kept.key[:_SHOWN_DIGITS],
            kept.kind,
            kept.problem or kept.name,
            size_text(kept.entry.size),
            _time(kept.entry.used),
            kept.torch,
        )
        for kept in found
    ]
    rows += [("", "code", folder, size_text(size), "", "") for folder, size in _code(cache).items()]
    _print_table(("key", "kind", "name", "size", "used", "torch"), rows)


@cache.command()
@click.argument("first", metavar="[A]", required=False)
@click.argument("second", metavar="[B]", required=False)
@click.option("--last", is_flag=True, help="The call that was captured last.")
@_command
def explain(cache: Cache, first: str | None, second: str | None, last: bool, as_json: bool) -> None:
    """Say what differs from entry A to entry B; of A alone, from the nearest entry of its kind and name to A.

    Entries are named by the first digits of their keys, as `ls` shows them.
    """
    if last == bool(first):
        raise click.UsageError("name one or two entries, or say --last")
    kept = catalog(cache)
    if first and second:
        old, new = (_intact(by_prefix(kept, prefix)) for prefix in (first, second))
        compared = compare(new, old)
    else:
        new = _intact(by_prefix(kept, first) if first else newest_call(kept))
        compared = compare(new, nearest_to(new.ingredients, new.kind, new.name, (k for k in kept if k is not new)))
    if as_json:
        _print_json(compared.as_json())
    else:
        _print_comparison(compared)


@cache.command()
@_command
def verify(cache: Cache, as_json: bool) -> None:
    """Read every entry, and list those that are damaged or not signed as they must be. Fails if there are any."""
    damaged = cache.verify()
    if as_json:
        _print_json([asdict(one) for one in damaged])
    else:
        _print_table(("key", "where", "what"), [(one.key[:_SHOWN_DIGITS], one.source, one.reason) for one in damaged])
        click.echo(f"{len(damaged)} damaged" if damaged else "all entries are intact")
    if damaged:
        raise SystemExit(1)


@cache.command()
@click.option("--max-bytes", type=click.IntRange(min=0), help="The limit; else 10 GB.")
@_command
def gc(cache: Cache, max_bytes: int | None, as_json: bool) -> None:
    """Bring folders within their limit, with all compiled code, and remove what killed processes left there."""
    swept = [one for each in _with_own(cache) for one in each.gc(max_bytes)]
    if as_json:
        _print_json([asdict(one) for one in swept])
        return
    for one in swept:
        click.echo(
            f"removed {one.evicted} files of {size_text(one.evicted_bytes)} and {one.strays} strays; "
            f"kept {one.kept} of {size_text(one.kept_bytes)}"
        )


@cache.command()
@click.argument("url")
@_command
def push(cache: Cache, url: str, as_json: bool) -> None:
    """Copy to another cache what it does not have. The key that signs is in FOREGRAD_CACHE_KEY or --key."""
    _print_copied(cache.push(Cache(url, key=_key_given())), as_json)


@cache.command()
@click.argument("url")
@_command
def pull(cache: Cache, url: str, as_json: bool) -> None:
    """Copy from another cache what this one does not have. The key is in FOREGRAD_CACHE_KEY or --key."""
    _print_copied(cache.pull(Cache(url, key=_key_given())), as_json)


@cache.command()
@_command
def stats(cache: Cache, as_json: bool) -> None:
    """Count entries and bytes, and how often entries were found in the folders, by all processes that ever asked."""
    found = cache.stats()
    if as_json:
        _print_json({"entries": found.entries, "bytes": found.bytes, "code": _code(cache), **asdict(found.ever)})
        return
    click.echo(f"{found.entries} entries of {size_text(found.bytes)}")
    for folder, size in _code(cache).items():
        click.echo(f"code of {size_text(size)} in {folder}")
    click.echo(_counts_text(found.ever))


def _with_own(cache: Cache) -> list[Cache]:
    """The cache, and where none was named this user's own as well: compiled code is there, whatever `FOREGRAD_CACHE`
    says."""
    is_other = click.get_current_context().params["place"] is None and named_place() not in (None, "off")
    return [cache, default_cache()] if is_other else [cache]


def _code(cache: Cache) -> dict[str, int]:
    return {folder: size for each in _with_own(cache) for folder, size in each.stats().code.items()}


def _key_given() -> Any:
    path = click.get_current_context().params.get("key")
    return key_from_file(path) if path else None


def _intact(kept: CatalogEntry) -> CatalogEntry:
    if kept.problem:
        raise LookupError(f"{kept.key[:_SHOWN_DIGITS]} cannot be explained: {kept.problem}")
    return kept


def _print_comparison(compared: Comparison) -> None:
    new, old = compared.new, compared.old
    click.secho(_title(new), bold=True)
    if new.origin:
        click.echo(f"  was {printable(new.origin)}")
    if old is None:
        click.echo(f"  no other {new.kind} of this name to compare with")
        return
    click.secho(f"beside {_title(old)}", bold=True)
    if not compared.differences:
        click.echo("  nothing differs")
    for line in (line for one in compared.differences for line in str(one).splitlines()):
        color = {"+": "green", "-": "red"}.get(line.strip()[:1]) if line.startswith("  ") else None
        click.secho(f"  {printable(line)}", fg=color)


def _title(kept: CatalogEntry) -> str:
    return printable(f"{kept.kind} {kept.name} {kept.key[:_SHOWN_DIGITS]}, made {kept.created or 'at an unknown time'}")


def _print_copied(copied: Copied, as_json: bool) -> None:
    if as_json:
        _print_json(asdict(copied))
    else:
        click.echo(f"copied {len(copied.keys)} entries")
        for key, reason in copied.failed.items():
            click.secho(f"  not {key[:_SHOWN_DIGITS]}: {printable(reason)}", fg="red")
    if copied.failed:
        raise SystemExit(1)


def _counts_text(counts: Counts) -> str:
    misses = "".join(f", {number} {printable(kind)}" for kind, number in sorted(counts.misses.items()))
    return f"asked so far: {counts.hits} found{misses}"


def _print_table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table(*titles, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _time(used: float | None) -> str:
    return "" if used is None else datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
