"""The command line of trust: `foregrad trust`, `foregrad sign` and `foregrad verify`. No torch is imported."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foregrad.cache.format.container import sign as write_signed
from foregrad.cache.format.container import unpack
from foregrad.cache.format.keys import MOST_CHARACTERS, FileSignature, PublicKey, SecretKey, Trust, key_from_file
from foregrad.cache.format.show import printable
from foregrad.cache.serialize import keyring
from foregrad.cli.progress import Progress
from foregrad.core.errors import CorruptArtifact, UntrustedArtifact
from foregrad.process.atomic_write import create_whole

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def trust() -> None:
    """Say whose signed files may run code here."""


@trust.command("ls")
def list_keys() -> None:
    """List the keys that are trusted."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "algorithm", "key id"):
        table.add_column(column)
    for label, key in keyring.labelled():
        table.add_row(Text(label), key.algorithm, key.key_id.hex()[:16])
    Console().print(table)


@trust.command()
@click.argument("name")
@click.argument("key", type=_FILE)
def add(name: str, key: Path) -> None:
    """Trust the KEY in a file, under a NAME: what it has signed may run code here."""
    try:
        with open(key, encoding="utf-8", errors="replace") as file:
            path = keyring.add(name, file.read(MOST_CHARACTERS))
    except FileExistsError:
        raise click.ClickException(f"there is a key {name} already: foregrad trust rm {name}") from None
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(printable(str(error))) from None
    click.echo(f"{name} is trusted: {path}")


@trust.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Trust the key of a NAME no longer. Files that only it has signed are loaded as data from then on."""
    try:
        keyring.remove(name)
    except FileNotFoundError:
        raise click.ClickException(f"there is no key {printable(name)}; see foregrad trust ls") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(printable(str(error))) from None
    click.echo(f"{name} is not trusted any more")


@trust.command()
@click.argument("path", type=click.Path(path_type=Path))
def make(path: Path) -> None:
    """Make a key that signs, in the file PATH, and the key that others trust beside it, in PATH.pub."""
    try:
        secret = SecretKey(secrets.token_bytes(32))
        for file, text in ((path, f"ed25519-secret:{secret.secret.hex()}"), (_public(path), _line(secret.public))):
            create_whole(file, f"{text}\n".encode())
    except (OSError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{path} signs: keep it to yourself (foregrad sign --key {path})")
    click.echo(f"{_public(path)} is for those who trust you (foregrad trust add NAME {_public(path)})")


@click.command()
@click.argument("file", type=_FILE)
@click.option("--key", type=_FILE, help="A file with the key that signs; else your own.")
def sign(file: Path, key: Path | None) -> None:
    """Sign a .fg FILE: you say with that that its code may run where your key is trusted."""
    try:
        signer = key_from_file(key) if key else keyring.signer()
        if signer is None or isinstance(signer, PublicKey):
            raise ValueError(
                "this key cannot sign; it is the public half of one" if signer else "there is no key to sign with"
            )
        with Progress(f"signing {printable(str(file))}") as progress:
            write_signed(file, signer, progress.add)
    except (CorruptArtifact, OSError, ValueError, ImportError) as error:
        raise click.ClickException(printable(str(error))) from None
    click.echo(f"{file} is signed by {signer.algorithm} key {signer.key_id.hex()[:16]}")


@click.command()
@click.argument("file", type=_FILE)
@click.option("--key", type=_FILE, help="A file with the key that must have signed it; else those that are trusted.")
def verify(file: Path, key: Path | None) -> None:
    """Say whether a .fg FILE is intact, who signed it, and whether its code would run here. Fails if it is damaged, or
    is not signed by a key that is trusted."""
    try:
        accepted = Trust((key_from_file(key),)) if key else keyring.trusted()
        entry = unpack(file, trust=accepted)
        whole = entry.header.file_length
        with Progress(f"reading {printable(str(file))}") as progress:
            for name in entry.names:
                entry.check(name, lambda length: progress.add(length, whole))
    except (CorruptArtifact, UntrustedArtifact, OSError, ValueError, ImportError) as error:
        raise click.ClickException(printable(str(error))) from None
    click.echo(f"{file} is intact, and signed by {_who(entry.header.signature)}: its code runs here")


def _who(signature: FileSignature | None) -> str:
    labels = [label for label, key in keyring.labelled() if Trust((key,)).knows(signature)]
    return labels[0] if labels else str(signature)


def _public(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def _line(key: PublicKey) -> str:
    return f"ed25519-public:{key.public.hex()}"
