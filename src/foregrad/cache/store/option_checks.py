"""Option checks: the arguments of `fg.Cache`, checked at once, and not in the first call of training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from foregrad.process.environment import CACHE

#: What `FOREGRAD_CACHE` says for this user's cache, and for none.
_ON, _OFF = ("1", "on", "true", "yes"), ("0", "off", "false", "no", "none")


def check_number(name: str, value: Any) -> None:
    """Raise unless a limit is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, not {value!r:.80}" + " (of bytes)" * name.endswith("bytes"))
    if value < 1:
        raise ValueError(f"{name} is 1 or more, not {value}")


def check_flag(name: str, value: Any) -> None:
    """Raise unless a flag is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r:.80}")


def check_key(value: Any) -> None:
    """Raise unless this is a key, its line of text or the bytes of a secret."""
    from foregrad.cache.format.keys import PublicKey, SecretKey, SharedKey

    if value is not None and not isinstance(value, (str, bytes, SharedKey, SecretKey, PublicKey)):
        raise TypeError(
            f"key is a secret as bytes, a line of text as docs/cache.md has it, or a key, not {value!r:.80}"
        )


def check_place(place: Any) -> None:
    """Raise unless this is a path or a URL of a place that can hold a cache."""
    if not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"a cache is at a path, a URL, or a list of these and of other caches, not at {place!r:.80}")
    text = os.fspath(place)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a cache is at a path or a URL, not at {text!r:.80}; fg.Cache() is this user's folder")
    if "://" not in text and (folder := Path(text).expanduser()).exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, and a cache is a folder: name another path, or remove the file")


def anywhere(part: Any) -> Any:
    """A place as a process in another folder can name it too; what is no path stays as it is."""
    if not isinstance(part, (str, os.PathLike)) or "://" in os.fspath(part):
        return part
    return str(Path(part).expanduser().absolute())


def named_place() -> str | None:
    """What `FOREGRAD_CACHE` says: a path or URL to use for this user's cache, or `off`; None if it says nothing."""
    named = CACHE.value
    if named.lower() in _OFF:
        return "off"
    return None if named.lower() in ("", *_ON) else named
