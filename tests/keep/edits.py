"""Small projects and edits of them, read from text files.

=== the name of the project
def f(x):                       main.py, below the imports of torch: defines `f`, `Model` or `make`
    return helpers.scale(x)
--- helpers.py                  another file
...
<<<
what is replaced, in all files
>>>
by what
??? what the difference between the keys must name
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TAIL = """
if "make" not in globals():
    def make():
        return (Model() if "Model" in globals() else f), (torch.ones(3),)
"""


@dataclass(frozen=True)
class Edit:
    """A project, what is replaced in it, and what the difference of the keys must name."""

    name: str
    before: dict[str, str]
    old: str
    new: str
    ingredient: str

    @property
    def after(self) -> dict[str, str]:
        return {name: text.replace(self.old, self.new) for name, text in self.before.items()}


def read_edits(name: str) -> list[Edit]:
    """The edits of a text file beside this one."""
    text = Path(__file__).with_name(name).read_text()
    return [_read(block) for block in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]]


def _read(block: str) -> Edit:
    title, _, rest = block.partition("\n")
    project, _, rest = rest.partition("<<<\n")
    old, _, rest = rest.partition("\n>>>\n")
    new, _, ingredient = rest.partition("\n??? ")
    main, *others = re.split(r"^--- ", project, flags=re.MULTILINE)
    files = {"main.py": HEAD + main + TAIL} | {o.partition("\n")[0]: o.partition("\n")[2] for o in others}
    assert any(old in text for text in files.values()), title
    return Edit(title, files, old, new.rstrip("\n"), ingredient.strip())
