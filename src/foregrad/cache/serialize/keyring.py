"""Keyring: the keys whose signatures let code in a file run, without being named in each call.

- your own key, a secret of 32 bytes that the first `save` makes: what you have saved yourself loads as it is;
- the keys of others that `foregrad trust add` has put beside it;
- the key in `FOREGRAD_CACHE_KEY`.

Keys in files are used if only this user can write them, in `FOREGRAD_CONFIG_DIR` or the user's configuration folder.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foregrad.cache.format.keys import (
    Key,
    PublicKey,
    SecretKey,
    SharedKey,
    Signer,
    Trust,
    key_from_environment,
    key_from_file,
    parse_key,
)
from foregrad.cache.store.private_files import make_folder, why_not_private
from foregrad.process.atomic_write import create_whole
from foregrad.process.folders import config_folder, why_exposed
from foregrad.process.progress import log

_OWN = "own.key"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def trusted() -> Trust:
    """The keys that are accepted where a call names none."""
    return Trust(tuple(key for _, key in labelled()))


def labelled() -> list[tuple[str, Key]]:
    """These keys, each with the words by which people know it."""
    found: list[tuple[str, Key]] = []
    if (own := _read(config_folder() / _OWN)) is not None:
        found.append(("your own key", own))
    if (shared := key_from_environment()) is not None:
        found.append(("FOREGRAD_CACHE_KEY", shared))
    for path in sorted(_folder().glob("*.key")):
        if (key := _read(path)) is not None:
            found.append((path.stem, key))
    return found


def signer() -> Signer | None:
    """The key that signs what is saved where a call names none: that of `FOREGRAD_CACHE_KEY` if it can sign, else your
    own, which is made now if there is none. None where it cannot be kept, so that what is saved is not signed."""
    shared = key_from_environment()
    if isinstance(shared, (SharedKey, SecretKey)):
        return shared
    path = config_folder() / _OWN
    try:
        make_folder(path.parent, is_private=True)
        create_whole(path, f"hmac-sha256:{secrets.token_hex(32)}\n".encode())
    except FileExistsError:  # made before, or by another process just now
        log.debug("what is saved is signed by the key in %s", path)
    except OSError as error:
        log.warning("files are saved without a signature, since there is no key in %s: %s", path, error)
        return None
    own = _read(path)
    return own if isinstance(own, (SharedKey, SecretKey)) else None


def add(label: str, text: str) -> Path:
    """Trust a key from now on, given as its line of text."""
    key = parse_key(text, "what is given")
    if isinstance(key, SecretKey):
        raise ValueError("this is the secret half of a key, which its owner keeps: give the public half")
    path = _path(label)
    make_folder(path.parent, is_private=True)
    create_whole(path, f"{text.strip()}\n".encode())
    return path


def remove(label: str) -> None:
    """Trust a key no longer; FileNotFoundError if there is none of that name."""
    _path(label).unlink()


def as_trust(given: Any) -> Trust:
    """What `trust=` stands for: one key, several, or a `Trust`."""
    keys: Iterable[Any] = (
        given.keys if isinstance(given, Trust) else given if isinstance(given, (list, tuple)) else [given]
    )
    found = tuple(keys)
    if not found or not all(isinstance(key, (SharedKey, SecretKey, PublicKey)) for key in found):
        raise TypeError(
            "trust= takes the key that must have signed the file, or a list of such keys (SharedKey, PublicKey, "
            f"SecretKey of foregrad.cache.format.keys), not {given!r:.80}.\nWithout it, code in a file is used if it "
            "is signed by a key that you trust (foregrad trust ls), and anything else is loaded as data."
        )
    return Trust(found)


def _folder() -> Path:
    return config_folder() / "trusted"


def _path(label: str) -> Path:
    if not _LABEL.fullmatch(label):
        raise ValueError(f"a key is named by letters, digits, dots and dashes, not {label!r:.80}")
    return _folder() / f"{label}.key"


def _read(path: Path) -> Key | None:
    """The key in a file, if nobody else can have put it there."""
    try:
        reason = why_not_private(path.stat()) or why_exposed(path.parent)
        if reason is None:
            return key_from_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ModuleNotFoundError) as error:
        reason = str(error)
    log.warning("the key in %s is not used: %s", path, reason)
    return None
