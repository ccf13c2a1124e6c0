"""Every Python block of the README and of docs/ runs, in order, one namespace a file."""

import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# ```python runs, ```python no-run does not.
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LISTING = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page: Path):
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": page.stem}
    for code in code_blocks(page):
        exec(compile(code, str(page), "exec"), namespace)


def test_the_readme_has_blocks_to_run():
    assert len(code_blocks(ROOT / "README.md")) >= 3


def test_the_listing_in_the_readme_is_what_its_first_block_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "README.md").read_text()
    code, listing = BLOCK.search(page), LISTING.search(page)
    assert code
    assert listing
    (tmp_path / "train.py").write_text(code[1])
    runpy.run_path(str(tmp_path / "train.py"))
    assert capsys.readouterr().out.rstrip() == listing[1].rstrip()


def code_blocks(page: Path) -> list[str]:
    """The blocks, each on its own lines of the page, so that errors and listings name the right line."""
    text = page.read_text()
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]
