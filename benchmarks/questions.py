"""What it costs to ask the data: a branch on a mask in a small function, and in encoders of `transformers`.

python benchmarks/questions.py [--rounds 15] [--clock cpu|wall] [--backend eager] [--only bert]
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from rich.console import Console
from torch import Tensor

import foregrad as fg

CALLS, WARM_UP = 300, 100
ENCODERS = ("bert", "roberta", "distilbert", "electra")


def plain(x: Tensor, mask: Tensor) -> Tensor:
    return torch.sin(x * mask) * 2


def asks(x: Tensor, mask: Tensor) -> Tensor:
    if mask.all():
        return torch.sin(x * mask) * 2
    return torch.sin(x * mask) * 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--only", nargs="+", choices=("function", *ENCODERS), default=("function", *ENCODERS))
    options = parser.parse_args()
    console = start(options)
    if "function" in options.only:
        measure_function(options, console)
    encoders = [name for name in ENCODERS if name in options.only]
    if encoders:
        measure_encoders(encoders, options, console)


def measure_function(options: argparse.Namespace, console: Console) -> None:
    x, mask = torch.randn(16), torch.ones(16, dtype=torch.bool)
    without, with_question = (fg.compile(function, backend=options.backend, cache=False) for function in (plain, asks))
    timings = timed(
        {
            "without a question": lambda: without(x, mask),
            "with one": lambda: with_question(x, mask),
            "what it asks, by itself": lambda: bool(mask.all()),
        },
        options,
        CALLS,
    )
    rows = table("Microseconds a call", "", "forward")
    for name, timing in timings.items():
        rows.add_row(name, timing.text(1e-6, 1))
    console.print(rows)
    bare, asked, op = (timing.median for timing in timings.values())
    console.print("a question beyond its ops, in microseconds:", verdict((asked - bare - op) / 1e-6, at_most=30))


def measure_encoders(names: list[str], options: argparse.Namespace, console: Console) -> None:
    rows = table("Milliseconds of forward and backward", "", "mask of ones", "without a mask", "programs", "ratio")
    for name in names:
        model, tokens = encoder(name)
        masked, bare = (fg.compile(model, backend=options.backend, cache=False) for _ in range(2))
        mask = torch.ones_like(tokens)
        timings = timed(
            {
                "mask": lambda masked=masked, tokens=tokens, mask=mask: train(masked, tokens, attention_mask=mask),
                "bare": lambda bare=bare, tokens=tokens: train(bare, tokens),
            },
            options,
            calls=5,
        )
        ratio = timings["mask"].median / timings["bare"].median
        programs = f"{len(masked.captures)}, {len(bare.captures)}"
        rows.add_row(name, *(t.text(1e-3, 2) for t in timings.values()), programs, verdict(ratio, at_most=1.03))
    console.print(rows)


def timed(candidates: dict[str, Callable[[], Any]], options: argparse.Namespace, calls: int) -> dict[str, Timing]:
    for call in candidates.values():
        for _ in range(min(WARM_UP, calls)):
            call()
    return interleave(candidates, rounds=options.rounds, clock=options.clock, calls=calls)


def encoder(name: str) -> tuple[torch.nn.Module, Tensor]:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "distilbert":
        sizes = {"vocab_size": 1000, "dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512}
    else:
        sizes["intermediate_size"] = 512
    config = transformers.AutoConfig.for_model(name, **sizes)
    return transformers.AutoModelForMaskedLM.from_config(config).train(), torch.randint(5, 1000, (8, 64))


def train(model: Any, tokens: Tensor, **others: Tensor) -> None:
    model.zero_grad()
    model(input_ids=tokens, labels=tokens, **others).loss.backward()


if __name__ == "__main__":
    main()
