"""SPR: sparse tensors among the arguments, in modules, and made inside. Eager is the reference."""

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.behaviours.test_sparse_gradients import same_as_eager
from tests.compare import compiled

#: What torch says of every sparse tensor, once a process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:Sparse CS"),
]

INDICES = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]])
LAYOUTS = ("coo", "coalesced", "csr", "csc")


def adjacency(layout="coo", scale=1.0):
    made = torch.sparse_coo_tensor(INDICES, torch.arange(1.0, 5.0) * scale, (4, 3))
    return made if layout == "coo" else getattr(made.coalesce(), "to_sparse_" + layout, made.coalesce)()


def features():
    return torch.randn(3, 2, requires_grad=True)


OPS = {
    "sparse.mm": lambda a, x: torch.sparse.mm(a, x),
    "@": lambda a, x: a @ x,
    "matrix by vector": lambda a, x: a @ x[:, 0],
    "addmm": lambda a, x: torch.sparse.addmm(x.sum() * torch.ones(4, 2), a, x, beta=0.5),
    "transposed": lambda a, x: a.t() @ (a @ x),
    "to_dense": lambda a, x: (a.to_dense() @ x).relu(),
    "scaled": lambda a, x: (a * 3) @ x,
    "values": lambda a, x: (
        (a @ x) * (a.values() if a.layout is torch.sparse_csr else a.to_dense().flatten()[:4])[:, None]
    ),
    "twice": lambda a, x: (a @ x).exp() + (a @ x.sin()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_SPR_4_a_sparse_argument(name, layout):
    @same_as_eager
    def story(wrap):
        f, found = wrap(OPS[name]), []
        for scale in (1.0, 2.0):
            x = features()
            result = f(adjacency(layout, scale), x)
            result.sin().sum().backward()
            found += [result.detach(), x.grad]
        return found

    story()


def test_SPR_4_one_program_serves_all_with_as_many_entries():
    f = compiled(lambda a, x: a @ x)
    for scale in (1.0, 2.0):
        f(adjacency(scale=scale), torch.randn(3, 2))
    assert len(f.captures) == 1
    fewer = torch.sparse_coo_tensor(INDICES[:, :2], torch.ones(2), (4, 3))
    x = torch.randn(3, 2)
    assert torch.equal(f(fewer, x), fewer @ x)
    assert torch.equal(f(fewer.to_sparse_csr(), x), fewer.to_sparse_csr() @ x)
    assert torch.equal(f(fewer.to_dense(), x), fewer.to_dense() @ x)
    assert torch.equal(f(adjacency(), x), adjacency() @ x)
    assert len(f.captures) == 4


class Convolution(nn.Module):
    """A layer of a graph convolution, with its graph as a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("graph", torch.sparse_coo_tensor(INDICES % 3, torch.ones(4), (3, 3)).coalesce())
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return torch.spmm(self.graph, self.linear(x)).relu()


@same_as_eager
def test_SPR_5_a_sparse_buffer(wrap):
    torch.manual_seed(0)
    model = Convolution()
    f, x, found = wrap(model), torch.randn(3, 2), []
    for _ in range(2):
        model.zero_grad()
        f(x).sum().backward()
        found += [p.grad.clone() for p in model.parameters()]
    model.graph = model.graph * 2
    return [*found, f(x).detach()]


@same_as_eager
def test_SPR_5_a_sparse_variable(wrap):
    graph = adjacency()
    f, x = wrap(lambda x: graph @ x * graph.is_coalesced() + graph._nnz()), torch.randn(3, 2)
    return [f(x), f(x + 1)]


@same_as_eager
def test_SPR_6_made_inside_of_values_that_need_a_gradient(wrap):
    def message(values, x):
        return torch.sparse.mm(torch.sparse_coo_tensor(INDICES, values, (4, 3)), x)

    f, found = wrap(message), []
    for _ in range(2):
        values, x = torch.randn(4, requires_grad=True), features()
        f(values, x).sin().sum().backward()
        found += [values.grad, x.grad]
    return found


@same_as_eager
def test_SPR_6_made_of_a_dense_tensor(wrap):
    f, found = wrap(lambda x: (x.relu().to_sparse() @ x.t()).sum() + x.relu().to_sparse().coalesce().values().sum()), []
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        f(x).backward()
        found.append(x.grad)
    return found


@same_as_eager
def test_SPR_7_what_comes_back(wrap):
    f = wrap(lambda a: (a, a * 2, a.t(), a.coalesce()))
    graph = adjacency()
    same, *others = f(graph)
    assert same is graph
    return others


@same_as_eager
def test_SPR_8_as_many_entries_as_the_data_have(wrap):
    f = wrap(lambda a: (a.coalesce().values() * 2, a.coalesce().indices() + 1))
    doubled = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.ones(3), (4, 3))
    return [*f(adjacency()), *f(doubled), *f(doubled * 3)]


def test_SPR_9_what_is_refused():
    x = torch.randn(3, 2)
    with pytest.raises(fg.CaptureError, match="sparse_coo and needs a gradient"):
        compiled(lambda a: a @ x)(adjacency().requires_grad_())
    with pytest.raises(fg.CaptureError, match=r"uses a sparse tensor in aten\.mul_"):
        compiled(lambda a: a.mul_(2) @ x)(adjacency())
    with pytest.raises(fg.CaptureError, match="writes to an input"):
        compiled(lambda a: (a.values().mul_(2), a @ x)[1])(adjacency("csr"))


def test_SPR_9_a_write_before_backward_is_noticed():
    given = adjacency()
    result = compiled(lambda a, x: a @ x)(given, features()).sum()
    given.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_SPR_10_a_step():
    model, graph = Convolution(), adjacency()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    @fg.step(model, optimizer, backend="eager")
    def train(graph, x):
        optimizer.zero_grad()
        loss = (graph @ model.linear(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    first = train(graph, torch.ones(3, 2)).item()
    losses = [train(graph, torch.ones(3, 2)).item() for _ in range(3)]
    assert losses[-1] < losses[0] < first
