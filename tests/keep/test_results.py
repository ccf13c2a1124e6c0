"""Results in containers of every kind: which a file can hold, which a cache can, and what is said of the others."""

import dataclasses
import json
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import foregrad as fg
from foregrad.cache.format.container import unpack
from foregrad.core.errors import CannotKeep, ForegradError, UntrustedArtifact
from foregrad.torch_private.serialization import plain_tree_spec_from_text, tree_spec_from_text, tree_spec_to_text
from tests.attacks.hostile import Saved
from tests.keep.test_data_only import KEY, both, same

Point = namedtuple("Point", "x y")


class Typed(NamedTuple):
    x: Tensor
    y: tuple[Tensor, ...]


@dataclasses.dataclass
class Record:
    x: Tensor
    y: Tensor


@dataclasses.dataclass
class Registered:
    x: Tensor
    y: Tensor


class Pair:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


torch.export.register_dataclass(Registered, serialized_type_name="tests.Registered")
pytree.register_pytree_node(Pair, lambda pair: ([pair.x, pair.y], None), lambda values, _: Pair(*values))

#: Classes of the user's, in which a function returns two tensors.
YOURS = {
    "a named tuple": lambda x: Point(x + 1, x * 2),
    "a typed named tuple": lambda x: Typed(x + 1, (x * 2,)),
    "a dataclass": lambda x: Record(x + 1, x * 2),
    "a container of pytree's": lambda x: Pair(x + 1, x * 2),
    "one inside another": lambda x: {"a": [Point(torch.sort(x), Record(x, x + 1))]},
}


def compiled(function, **options):
    made = fg.compile(function, backend="eager", **{"cache": False, **options})
    made(torch.ones(3, 3))
    return made


def shown(value) -> str:
    return str(pytree.tree_structure(value))


@pytest.mark.parametrize("name", sorted(n for n in dir(torch._C._return_types) if not n.startswith("__")))
def test_every_named_tuple_of_torch_is_written_down(name: str):
    kind = getattr(torch.return_types, name)
    structure = pytree.tree_structure({"a": [kind(range(kind.n_sequence_fields))]})
    parts: list = []
    text = tree_spec_to_text(structure, parts)
    assert parts == []
    assert tree_spec_from_text(text, ()) == plain_tree_spec_from_text(text) == structure


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node["children_spec"].pop(),
        lambda node: node["children_spec"].append(node["children_spec"][0]),
        lambda node: node.update(context="[1]"),
        lambda node: node.update(type="torch.return_types.SequenceKey"),
        lambda node: node.update(type="torch.return_types.pytree_register_structseq"),
        lambda node: node.update(type="torch.return_types.__loader__"),
        lambda node: node.update(type="foregrad.class", context=0),
        lambda node: node.update(type="foregrad.namedtuple", context=0),
    ],
)
def test_a_hostile_named_tuple_is_refused(change, tmp_path: Path):
    made = compiled(torch.sort)
    made.save(tmp_path / "a.fg", key=KEY)
    entry = unpack(tmp_path / "a.fg")
    saved = Saved(entry.about, {name: bytes(entry.blob(name)) for name in entry.names}, lambda loaded: None)
    table = saved.table
    (structure,) = (one for one in table if one["is"] == "structure")
    protocol, node = json.loads(structure["text"])
    change(node)
    structure.update(text=json.dumps([protocol, node]), parts=[{"is": "known", "name": "os.system"}, 0])
    path = saved.with_table(table).write(tmp_path / "b.fg")
    with pytest.raises(ForegradError):
        fg.load(path, backend="eager")(torch.ones(3, 3))


@pytest.mark.parametrize("name", YOURS)
def test_a_class_of_yours_is_found_in_a_cache(name: str, tmp_path: Path):
    options = {"cache": str(tmp_path / "cache")}
    compiled(YOURS[name], **options)
    again = compiled(YOURS[name], **options)
    assert str(again.origin).startswith("found without tracing"), again.origin
    x = torch.randn(3, 3)
    assert shown(again(x)) == shown(YOURS[name](x))


@pytest.mark.parametrize("name", YOURS)
def test_a_file_says_that_it_cannot_hold_one(name: str, tmp_path: Path):
    with pytest.raises(CannotKeep, match=r"a result is a \w+, a class of yours(.|\n)*Return a tuple or a dict"):
        compiled(YOURS[name]).save(tmp_path / "a.fg")


def test_a_class_that_is_registered_by_a_name_needs_a_signature(tmp_path: Path):
    made = compiled(lambda x: Registered(x + 1, x * 2))
    made.save(tmp_path / "a.fg", key=KEY)
    same(fg.load(tmp_path / "a.fg", trust=KEY)(torch.ones(3, 3)), made(torch.ones(3, 3)))
    with pytest.raises(UntrustedArtifact, match=r"the container 'tests\.Registered'"):
        fg.load(tmp_path / "a.fg", backend="eager")(torch.ones(3, 3))


def test_fields_have_their_names(tmp_path: Path):
    for loaded in both(compiled(lambda x: x.max(0)), tmp_path / "a.fg"):
        found = loaded(torch.eye(3))
        assert torch.equal(found.values, torch.ones(3))
        assert torch.equal(found.indices, torch.arange(3))
