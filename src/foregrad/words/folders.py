"""Folders: where foregrad keeps what outlives a process."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where foregrad keeps what outlives a process: `FOREGRAD_CACHE_DIR`, else the user's cache folder."""
    if chosen := os.environ.get("FOREGRAD_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foregrad"


def config_folder() -> Path:
    """Where foregrad keeps what the user has decided: `FOREGRAD_CONFIG_DIR`, else the user's configuration folder."""
    if chosen := os.environ.get("FOREGRAD_CONFIG_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "foregrad"
