"""What a fresh process compiles first: one model of those below, or each in a process of its own, beside eager.

python tests/backends/first_thing.py max_pool
python tests/backends/first_thing.py all
"""

import copy
import subprocess
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from foregrad.backends.guarded_code import Guarded


class Of(nn.Module):
    """A function of an argument and a weight, as a module."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return self.function(x, self.weight)


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


def image():
    return torch.randn(2, 3, 8, 8)


def tokens():
    return torch.randint(0, 10, (4, 6))


def rows():
    return torch.randn(4, 6)


def attention(x, w):
    q, k, v = (x @ w).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grid_sample(x, w):
    return F.grid_sample(x, F.affine_grid(w, [2, 3, 5, 5], align_corners=False), align_corners=False)


#: A model and its argument, each made when it is asked for.
MODELS = {
    "max_pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), image),
    "avg_pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)), image),
    "conv_transpose": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.GELU()), image),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, 4), tokens),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4)), tokens),
    "lstm": (lambda: Recurrent(6, 5), rows),
    "attention": (lambda: Of(attention, 8, 24), lambda: torch.randn(2, 4, 8)),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)), image),
    "upsample": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear")), image),
    "grid_sample": (lambda: Of(grid_sample, 2, 2, 3), image),
    "fft": (lambda: Of(lambda x, w: torch.fft.irfft(torch.fft.rfft(x * w)), 6), rows),
    "cumsum": (lambda: Of(lambda x, w: (x * w).cumsum(0).softmax(-1), 6), rows),
    "topk": (lambda: Of(lambda x, w: (x * w).topk(2).values + (x + w).sort(0).values[:, :2], 6), rows),
    "scatter": (lambda: Of(lambda x, w: x.scatter_add(1, torch.zeros_like(x, dtype=torch.long), x * w), 6), rows),
    "einsum": (lambda: Of(lambda x, w: torch.einsum("ij,kj,lj->ikl", x, w, x), 3, 6), rows),
    "fold": (lambda: Of(lambda x, w: F.fold(F.unfold(x * w, 3, padding=1), (8, 8), 3, padding=1), 1, 3, 1, 1), image),
    "loss": (lambda: Of(lambda x, w: F.cross_entropy(x @ w, torch.arange(4)), 6, 5), rows),
}


def main(name):
    """Compile a model, first of all in this process; fail where it is not eager's, or where the compiler fails."""
    torch.manual_seed(0)
    make, argument = MODELS[name]
    model, x = make(), argument()
    twin = copy.deepcopy(model)
    warnings.filterwarnings("error", "(?s).*could not compile", fg.FallbackWarning)
    compiled = fg.compile(model, backend="inductor", cache=False, progress=False)
    torch.testing.assert_close(step(compiled, x), step(twin, x), rtol=1e-4, atol=1e-4)
    assert isinstance(compiled.captures[0].stage.run_forward, Guarded)
    found = [one for half in compiled.regions for region in half.distinct for one in region.fallbacks]
    print(name, *found, sep="\n  ")


def step(model, x):
    """The result and the gradients of a call."""
    result = model(x)
    return result, *torch.autograd.grad((result * result.cos()).sum(), list(model.parameters()))


def in_a_fresh_process(name):
    command = [sys.executable, __file__, name]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


if __name__ == "__main__":
    if sys.argv[1] == "all":
        failed = [done.stderr for done in map(in_a_fresh_process, MODELS) if done.returncode]
        sys.exit("\n".join(failed) if failed else 0)
    main(sys.argv[1])
