"""Files that nobody trusted has signed: what is built from their data does what their code does, bit by bit.

Programs of many kinds are saved, and loaded twice: with the code in the file, and as data.
"""

import copy
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from foregrad.cache.format.keys import SharedKey

KEY = SharedKey(b"k" * 32)


def both(compiled, path: Path, **options):
    """What was saved, with its code and without."""
    compiled.save(path, key=KEY)
    code, data = fg.load(path, trust=KEY, **options), fg.load(path, backend="eager", **options)
    assert "signed by a key of trust=" in code.how
    assert "built here from the data" in data.how
    return code, data


def flat(value) -> list[Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, Tensor)]


def same(one, other) -> None:
    assert type(one) is type(other)
    assert len(flat(one)) == len(flat(other))
    for a, b in zip(flat(one), flat(other), strict=True):
        assert (a.shape, a.stride(), a.dtype, a.requires_grad) == (b.shape, b.stride(), b.dtype, b.requires_grad)
        assert torch.equal(a, b)


def written(x: Tensor) -> Tensor:
    x.mul_(2)
    x[0].add_(1)
    return x.t()


def views(x: Tensor):
    y = x * 2
    return y, y[1:], y.view(-1).detach(), y.transpose(0, 1)


def drawn_again(x: Tensor) -> Tensor:
    return checkpoint(lambda y: F.dropout(y.sin(), 0.5) * y, x, use_reentrant=False)


def second(x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x.tanh() ** 3).sum(), x, create_graph=True)
    return gradient.square().sum() + x.sum()


FUNCTIONS = {
    "pointwise": lambda x: (x.sin() * x).exp(),
    "a dict": lambda x: {"a": x + 1, "b": [x.sum(), (x * 2, None)], 3: x.mean()},
    "an ordered dict": lambda x: OrderedDict(first=x * 2, second=x.sum()),
    "writes": written,
    "views of one tensor": views,
    "random numbers": lambda x: F.dropout(x, 0.3) + torch.rand_like(x),
    "random numbers again": drawn_again,
    "second derivatives": second,
    "softmax": lambda x: F.log_softmax(x, -1).gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "sort": lambda x: tuple(torch.sort(x, dim=1)),
    "named tuples of torch": lambda x: {
        "sorted": torch.sort(x, dim=1),
        "rest": [x.max(0), torch.linalg.svd(x), x.shape],
    },
    "linear algebra": lambda x: torch.linalg.solve(x @ x.t() + 4 * torch.eye(3), x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "complex numbers": lambda x: torch.fft.fft(x).abs(),
    "an index": lambda x: x[torch.tensor([0, 2])] * x[:2, 1:2].clone(),
    "another dtype": lambda x: x.double().cumsum(0).to(torch.bfloat16),
    "without grad": lambda x: torch.no_grad()(lambda y: y * 3)(x) + x.detach(),
    "a constant": lambda x: x + torch.arange(4.0),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, requires_grad: bool, tmp_path: Path):
    if name == "second derivatives" and not requires_grad:
        pytest.skip("needs a gradient")
    if name == "writes" and requires_grad:
        pytest.skip("a leaf that needs a gradient cannot be written")
    compiled = fg.compile(FUNCTIONS[name], backend="eager", cache=False)
    given = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(requires_grad)

    def run(function):
        x = copy.deepcopy(given)
        torch.manual_seed(1)
        result = function(x)
        total = [one.float().sum() for one in flat(result) if one.requires_grad]
        if total:
            sum(total).backward()
        return result, x, x.grad

    expected = run(compiled)
    for loaded in both(compiled, tmp_path / "function.fg"):
        same(run(loaded), expected)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(7, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0][:, -1])


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Embedding(7, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32, 5))


IMAGES, TOKENS = torch.ones(4, 3, 8, 8), torch.arange(16).view(4, 4) % 7
MODELS = {
    "convolutions": (convolutions, IMAGES),
    "recurrent": (Recurrent, TOKENS),
    "transformer": (transformer, TOKENS),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_given", [False, True], ids=["state of the file", "state that is given"])
def test_training_steps(name: str, optimizer: str, is_given: bool, tmp_path: Path):
    make, x = MODELS[name]
    y = torch.arange(4) % 5

    def made():
        torch.manual_seed(0)
        model = make()
        return model, OPTIMIZERS[optimizer](model.parameters())

    model, opt = made()

    @fg.step(model, opt, backend="eager", cache=False)
    def train(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.detach()

    for _ in range(2):
        train(x, y)
    if is_given:
        train.save(tmp_path / "step.fg", key=KEY)
        code = fg.load(tmp_path / "step.fg", trust=KEY, state=made())
        data = fg.load(tmp_path / "step.fg", backend="eager", state=made())
    else:
        code, data = both(train, tmp_path / "step.fg")
    for _ in range(3):
        torch.manual_seed(3)
        expected = code(x, y)
        torch.manual_seed(3)
        same(data(x, y), expected)
    same(list(data.state_dict().values()), list(code.state_dict().values()))


def test_a_module_that_is_not_as_it_was_is_refused(tmp_path: Path):
    """What the call checks of modules is checked, too: their modes, hooks and numbers."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    compiled = fg.compile(model, backend="eager", cache=False)
    x = torch.ones(2, 3)
    compiled(x)
    compiled.save(tmp_path / "model.fg", key=KEY)
    for change in (lambda m: m.eval(), lambda m: setattr(m[1], "p", 0.1), lambda m: m[0].register_forward_hook(print)):
        other = copy.deepcopy(model)
        data = fg.load(tmp_path / "model.fg", state=other, backend="eager")
        data(x)
        change(other)
        with pytest.raises(fg.GuardError, match="program 1"):
            data(x)


@pytest.mark.parametrize("dynamic", [True, {"x": (0,)}])
def test_sizes_that_vary(dynamic, tmp_path: Path):
    compiled = fg.compile(lambda x: (x.softmax(0) * x.shape[0]).sum(1), backend="eager", cache=False, dynamic=dynamic)
    compiled(torch.ones(5, 3, requires_grad=True)).sum().backward()
    for loaded in both(compiled, tmp_path / "f.fg"):
        for rows in (5, 7, 11):
            x = torch.randn(rows, 3, requires_grad=True)
            expected = (x.softmax(0) * rows).sum(1)
            assert torch.equal(loaded(x), expected)


def test_a_custom_op_is_refused_by_its_name(tmp_path: Path):
    with torch.library._scoped_library("data_only_tests", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        compiled = fg.compile(lambda x: torch.ops.data_only_tests.double(x), backend="eager", cache=False)
        compiled(torch.ones(2))
        compiled.save(tmp_path / "f.fg", key=KEY)
        assert torch.equal(fg.load(tmp_path / "f.fg", trust=KEY)(torch.ones(2)), torch.full((2,), 2.0))
        with pytest.raises(fg.UntrustedArtifact, match="data_only_tests::double"):
            fg.load(tmp_path / "f.fg")
