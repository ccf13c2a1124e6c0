"""A convolution and its gradients by size: in torch's usual layout, channels last, and by the kernel of our own.

    python benchmarks/convolutions.py --rounds 9

Channels last includes what the layout costs: the weight is laid out anew in forward and in backward, its gradient back.
Where that takes longer than the usual layout, `channels_last.py` must leave a convolution alone; where our kernel takes
longer than torch's, `convolutions.py` must.
"""

import argparse
from collections.abc import Callable

import torch

from benchmarks.measure import add_options, interleave, start, table
from foregrad.backends.kernels.convolutions import Convolutions
from foregrad.backends.kernels.winograd import build_convolutions
from foregrad.passes.convolution_sizes import gains_by_channels_last, is_quicker

aten = torch.ops.aten
LAST = torch.channels_last

#: Channels in and out, and the sides of images: those of ResNet-18 for images of 32 to 224, and smaller ones.
LAYERS = [(64, 56), (64, 16), (64, 8), (128, 28), (128, 8), (128, 4), (256, 14), (256, 4), (256, 2), (512, 7), (512, 2)]
BATCHES = (1, 4, 16)
ONCE = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
MASK = [True, True, False]
OPTIONS = dict(zip(("stride", "padding", "dilation", "transposed", "output_padding", "groups"), ONCE, strict=True))


def ways(batch: int, channels: int, side: int, ours: Convolutions) -> dict[str, Callable[[], object]]:
    """A forward and a backward in each way."""
    x, y = (torch.randn(batch, channels, side, side) for _ in range(2))
    w = torch.randn(channels, channels, 3, 3)
    x_last, y_last = x.to(memory_format=LAST), y.to(memory_format=LAST)

    def usual() -> object:
        return aten.convolution(x, w, None, *ONCE), aten.convolution_backward(y, x, w, None, *ONCE, MASK)

    def last(forward: Callable[..., object], backward: Callable[..., tuple[torch.Tensor, ...]]) -> object:
        result = forward(x_last, w.clone(memory_format=LAST), None, **OPTIONS)
        of_image, of_weight, _ = backward(y_last, x_last, w.clone(memory_format=LAST), None, *ONCE, MASK)
        return result, of_image, of_weight.contiguous()

    found = {
        "usual": usual,
        "last": lambda: last(torch.convolution, aten.convolution_backward.default),
        "ours": lambda: last(ours.forward, ours.backward),
    }
    return found if is_quicker(x_last, w, *ONCE) else {name: found[name] for name in ("usual", "last")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rounds=9)
    parser.add_argument("--calls", type=int, default=3)
    options = parser.parse_args()
    console, ours = start(options), build_convolutions()()
    shown = table(
        "milliseconds of a forward and a backward", "batch x channels, side", "usual", "last", "ours", "chosen"
    )
    for channels, side in LAYERS:
        for batch in BATCHES:
            timings = interleave(
                ways(batch, channels, side, ours), rounds=options.rounds, clock=options.clock, calls=options.calls
            )
            best = min(timings, key=lambda name: timings[name].median)
            looks = torch.empty(batch, channels, side, side), torch.empty(channels, channels, 3, 3)
            is_last = gains_by_channels_last(batch * side * side, *looks, *ONCE)
            chosen = ("ours" if "ours" in timings else "last") if is_last else "usual"
            loss = timings[chosen].median / timings[best].median
            times = [timings[name].text(1e-3) if name in timings else "" for name in ("usual", "last", "ours")]
            shown.add_row(f"{batch} x {channels}, {side}", *times, f"{chosen}, {loss:.2f} of the best")
    console.print(shown)


if __name__ == "__main__":
    main()
