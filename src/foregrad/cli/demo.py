"""What `make demo` shows: one small transformer trained from the same seed by eager PyTorch, captured, and compiled."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import foregrad as fg
from foregrad.backends.toolchain import compiler
from foregrad.process.threads import one_thread

Result = TypeVar("Result")

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 3, 64, 8
LISTING_LINES = 25
ROUNDING = 1e-4
PHASES = ("forward", "backward", "optimizer")

# From Lewis Carroll, Alice's Adventures in Wonderland (1865), and Herman Melville, Moby-Dick (1851).
TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:
once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, "and what is the use of a book," thought Alice "without pictures or conversations?"
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy
and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and
picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her. There was nothing so
very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to
itself, "Oh dear! Oh dear! I shall be late!"
Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse,
and nothing particular to interest me on shore, I thought I would sail about a little and see the watery
part of the world. It is a way I have of driving off the spleen and regulating the circulation. Whenever
I find myself growing grim about the mouth; whenever it is a damp, drizzly November in my soul; whenever
I find myself involuntarily pausing before coffin warehouses, and bringing up the rear of every funeral I
meet; then, I account it high time to get to sea as soon as I can.
"""


def run(console: Console, *, steps: int = 150, seed: int = 0) -> bool:
    """Train all, print what happened, and say whether captured is eager bitwise, and compiled to rounding."""
    with one_thread():  # small tensors gain little from more, and times on a busy machine stay true
        torch.manual_seed(seed)
        vocabulary = sorted(set(TEXT))
        text = torch.tensor([vocabulary.index(character) for character in TEXT])
        model = Transformer(len(vocabulary))
        show_listing(console, model, *batch_at(text, seed))
        warm_up(model, *batch_at(text, seed))

        backends = {"captured": "eager"} | ({"compiled": "inductor"} if compiler() else {})
        targets = {n: fg.compile(copy.deepcopy(model), backend=b, progress=False) for n, b in backends.items()}
        trainers = {name: trainer_of(target) for name, target in {"eager": model, **targets}.items()}
        comparisons = train(console, trainers, text, steps, seed)
    console.print(f"captured: {comparisons['captured'].bitwise()}")
    if "compiled" in comparisons:
        console.print(f"compiled: {comparisons['compiled'].rounded()}")
        console.print("what its backward consists of, each distinct region compiled once:")
        console.print(str(targets["compiled"].regions[1]), markup=False, highlight=False)
    else:
        console.print("there is no C++ compiler, so nothing was compiled")
    console.print(table_of_times(trainers, steps))
    return comparisons["captured"].is_equal() and all(c.is_close() for c in comparisons.values())


def show_listing(console: Console, model: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    """Print the head of the program that forward and backward make together."""
    start = time.perf_counter()
    program = fg.capture(model, tokens, targets)
    milliseconds = 1e3 * (time.perf_counter() - start)
    lines = str(program).splitlines()
    console.rule(f"forward and backward as one program, captured in {milliseconds:.0f} ms", align="left")
    forward = lines.index("  forward")
    head = [*lines[:5], "    ...", *lines[forward : forward + LISTING_LINES]]
    console.print("\n".join(head), markup=False, highlight=False, soft_wrap=True)
    console.print(f"... {len(lines)} lines in all", style="dim")
    console.rule("the same training, side by side", align="left")


def warm_up(model: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    """Pay torch's own first-use costs (its optimizers import lazily) before anything is timed."""
    trainer_of(copy.deepcopy(model)).step(tokens, targets, seed=0)


def batch_at(text: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A batch of windows of the text and, for each character, the next one."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
    positions = starts + torch.arange(CONTEXT)
    return text[positions], text[positions + 1]


def trainer_of(model: nn.Module) -> Trainer:
    parameters = dict(model.named_parameters())
    return Trainer(model, parameters, torch.optim.AdamW(parameters.values(), lr=3e-3))


def train(
    console: Console, trainers: dict[str, Trainer], text: Tensor, steps: int, seed: int
) -> dict[str, TrainingComparison]:
    """Step all on the same batches, comparing losses and gradients with those of eager at every step."""
    comparisons = {name: TrainingComparison() for name in trainers if name != "eager"}
    losses = TextColumn("{task.fields[losses]}")
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), losses, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps, losses="")
        for step in range(steps):
            tokens, targets = batch_at(text, seed + step)
            seen = {name: each.step(tokens, targets, seed + step) for name, each in trainers.items()}
            for name, comparison in comparisons.items():
                comparison.add((seen["eager"], seen[name]), trainers["eager"].parameters, trainers[name].parameters)
            shown = "  ".join(f"{name} {loss:.4f}" for name, loss in seen.items())
            progress.update(bar, advance=1, losses=f"loss {shown}")
    return comparisons


def table_of_times(trainers: dict[str, Trainer], steps: int) -> Table:
    """Where time went: the usual step by phase, what the first step took beyond it, and the whole."""
    table = Table(title="where time went (ms)", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in trainers:
        table.add_column(name, justify="right")
    all_of_them = trainers.values()
    for phase in PHASES:
        table.add_row(f"{phase}, median step", *(f"{1e3 * each.usual(phase):.2f}" for each in all_of_them))
    table.add_row("first step beyond that", *(f"{1e3 * each.start():.0f}" for each in all_of_them))
    table.add_row(f"all {steps} steps", *(f"{1e3 * each.total():.0f}" for each in all_of_them))
    return table


class Block(nn.Module):
    """Attention and a two-layer network, each added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Characters in, loss of the next character out."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_characters)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.characters(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@dataclass
class Trainer:
    """A model under training and how long each phase of each step took, in seconds."""

    model: Callable[[Tensor, Tensor], Tensor]
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})

    def step(self, tokens: Tensor, targets: Tensor, seed: int) -> float:
        """One step; the seed fixes the dropout masks. Gradients are left for comparison."""
        torch.manual_seed(seed)
        self.optimizer.zero_grad()
        loss = self.timed("forward", lambda: self.model(tokens, targets))
        self.timed("backward", loss.backward)
        self.timed("optimizer", self.optimizer.step)
        return loss.item()

    def timed(self, phase: str, work: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        result = work()
        self.seconds[phase].append(time.perf_counter() - start)
        return result

    def usual(self, phase: str) -> float:
        """The median over all steps but the first."""
        return statistics.median(self.seconds[phase][1:])

    def start(self) -> float:
        """What the first step took beyond a usual one: warming up and, if the model is captured, capture."""
        return sum(max(0.0, self.seconds[phase][0] - self.usual(phase)) for phase in PHASES)

    def total(self) -> float:
        return sum(map(sum, self.seconds.values()))


@dataclass
class TrainingComparison:
    """How far two runs are from each other, over the steps seen so far."""

    num_steps: int = 0
    num_equal_losses: int = 0
    num_equal_gradients: int = 0
    loss_difference: float = 0.0
    gradient_difference: float = 0.0
    first_difference: float = 0.0  # of gradients, relative, before the runs can part

    def add(
        self, losses: tuple[float, float], eager: dict[str, nn.Parameter], captured: dict[str, nn.Parameter]
    ) -> None:
        """Count one step. Parameters are paired by name and must have the same names."""
        pairs = [(gradient_of(eager[name]), gradient_of(captured[name])) for name in eager | captured]
        self.num_steps += 1
        self.num_equal_losses += losses[0] == losses[1]
        self.num_equal_gradients += all(torch.equal(a, b) for a, b in pairs)
        self.loss_difference = max(self.loss_difference, abs(losses[0] - losses[1]))
        largest = max((a - b).abs().max().item() for a, b in pairs)
        if self.num_steps == 1:
            self.first_difference = largest / max(a.abs().max().item() for a, _ in pairs)
        self.gradient_difference = max(self.gradient_difference, largest)

    def is_equal(self) -> bool:
        return self.num_equal_losses == self.num_equal_gradients == self.num_steps

    def is_close(self) -> bool:
        """Whether the runs were the same to rounding as long as nothing else kept them apart."""
        return self.first_difference < ROUNDING

    def rounded(self) -> str:
        style = "green" if self.is_close() else "red"
        return (
            f"[{style}]gradients of the first step within {self.first_difference:.0e} of eager's[/]; "
            f"losses of all steps within {self.loss_difference:.0e}"
        )

    def bitwise(self) -> str:
        steps = self.num_steps
        style = "green" if self.is_equal() else "red"
        return (
            f"[{style}]losses bitwise equal in {self.num_equal_losses} of {steps} steps, "
            f"gradients in {self.num_equal_gradients} of {steps}[/]; "
            f"largest difference {self.loss_difference:g} and {self.gradient_difference:g}"
        )


def gradient_of(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError(f"a parameter of shape {list(parameter.shape)} got no gradient")
    return parameter.grad
