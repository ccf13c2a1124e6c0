"""Golden texts: what a test prints, compared with a file beside it. `REWRITE_GOLDEN=1` writes the files anew."""

import os
from pathlib import Path


def assert_golden(text: str, path: Path) -> None:
    """The text is that of the file; a difference is shown line by line by pytest."""
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text)
    assert path.exists(), f"{path.name} is missing; REWRITE_GOLDEN=1 writes it"
    assert text.splitlines() == path.read_text().splitlines()
