"""Files whose digests are right and whose contents are nonsense: errors of our own kind, or what was saved."""

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.cache.format.container import Entry, pack, unpack

JUNK = [
    None, True, -1, 10**30, 1.5, "", "tensor", [], {}, {"is": "object", "at": 0}, {"is": "made"}, {"is": "float"},
    {"is": "dict", "items": [[{"is": "list", "items": []}, 1]]}, {"is": "known", "name": "builtins.print"},
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())

    @fg.step(model, optimizer, backend="eager", cache=False)
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(2):
        train(torch.ones(4, 3))
    path = tmp_path_factory.mktemp("saved") / "step.fg"
    train.save(path)
    return unpack(path)


def places(value, path=()):
    """Where something stands in JSON, except for the text of code: what that does is not up to us."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        if key not in ("text", "lines"):
            yield (*path, key)
            yield from places(inner, (*path, key))


def changed(value, chance: random.Random):
    value = copy.deepcopy(value)
    *path, last = chance.choice(list(places(value)))
    holder = value
    for key in path:
        holder = holder[key]
    if chance.random() < 0.3:
        holder.pop(last)
    else:
        holder[last] = copy.deepcopy(chance.choice(JUNK))
    return value


@pytest.mark.parametrize("part", ["objects", "header", "bytes"])
def test_what_is_made_up_is_refused_with_an_error_of_ours(part: str, saved: Entry, tmp_path: Path):
    blobs = {name: bytes(saved.blob(name)) for name in saved.names}
    refused = 0
    for seed in range(60):
        chance, about, held = random.Random(seed), saved.about, dict(blobs)
        if part == "objects":
            held["objects.json"] = json.dumps(changed(json.loads(blobs["objects.json"]), chance)).encode()
        elif part == "header":
            about = changed(about, chance)
        else:
            name = chance.choice(["objects.json", "state.safetensors"])
            spoilt = bytearray(blobs[name])
            spoilt[chance.randrange(min(len(spoilt), 500))] ^= 0xFF
            held[name] = bytes(spoilt)
        (tmp_path / "made-up.fg").write_bytes(pack(about, held))
        try:
            str(fg.load(tmp_path / "made-up.fg").captures)
        except fg.ForegradError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize("buffer", [torch.ones(3, dtype=torch.complex128), torch.ones(1).expand(3)])
def test_a_tensor_that_no_file_holds_is_refused_when_it_is_saved(buffer: torch.Tensor, tmp_path: Path):
    model = nn.Module()
    model.register_buffer("odd", buffer)

    @fg.step(model, backend="eager", cache=False)
    def read():
        return model.odd * 2

    expected = read()
    with pytest.raises(fg.CannotKeep, match=r"cannot hold 0\.odd"):
        read.save(tmp_path / "step.fg")
    read.save(tmp_path / "step.fg", weights=False)
    assert torch.equal(fg.load(tmp_path / "step.fg", state=model)(), expected)


def test_a_variable_around_a_saved_function_is_named(tmp_path: Path):
    factor = 2.5
    compiled = fg.compile(lambda x: x * factor, backend="eager", cache=False)
    compiled(torch.ones(2))
    with pytest.raises(fg.CannotKeep, match=r"now 2\.5"):
        compiled.save(tmp_path / "function.fg")
