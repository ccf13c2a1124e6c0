"""The first two training steps in a fresh process, from after `import torch`: what benchmarks/warm.py starts.

python benchmarks/warm_step.py SIDE WORKLOAD FOLDER [THREADS] [BACKEND]

FOLDER holds what earlier processes have left: the inputs, and an artifact or a cache. `prepare` in place of a side
writes inputs and artifact. Prints one line of JSON: seconds to the end of the first and of the second step, their
losses, where foregrad's captures come from, and what was used of a file.
"""

import json
import sys
import time

import torch

STARTED = time.perf_counter()

from collections.abc import Callable  # noqa: E402  the clock starts after torch, before everything else
from pathlib import Path  # noqa: E402

from torch import Tensor, nn  # noqa: E402

AdamW = torch.optim.AdamW
Step = Callable[..., Tensor]


def main(side: str, workload: str, folder: str, threads: str = "1", backend: str = "inductor") -> None:
    torch.set_num_threads(int(threads))
    place = Path(folder)
    if side == "prepare":
        prepare(workload, place, backend)
        return
    inputs = torch.load(place / "inputs.pt")
    step = SIDES[side](workload, place, backend)
    seconds, losses = [], []
    for _ in range(2):
        losses.append(step(*inputs).item())
        seconds.append(time.perf_counter() - STARTED)
    origins = [made.origin.how for made in getattr(step, "captures", ()) if hasattr(made, "origin")]
    how = getattr(step, "how", "")
    print(json.dumps({"seconds": seconds, "losses": losses, "origins": origins, "how": how}))


def build(workload: str) -> tuple[nn.Module, AdamW]:
    import workloads

    model, _ = workloads.build(workload)
    return model, AdamW(model.parameters(), fused=True)


def step_of(run: Step, optimizer: AdamW) -> Step:
    """The step as everyone writes it; `run` is the model, or what a compiler made of it."""

    def train(*inputs: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = run(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def eager(workload: str, place: Path, backend: str) -> Step:
    return step_of(*build(workload))


def torch_compile(workload: str, place: Path, backend: str) -> Step:
    model, optimizer = build(workload)
    return step_of(torch.compile(model, fullgraph=True), optimizer)


def artifact(workload: str, place: Path, backend: str) -> Step:
    """Neither the model nor the optimizer is built: both are in the file. Who does not trust it compiles here."""
    import foregrad as fg

    return fg.load(place / "step.fg", backend=backend)


def lazy_hit(workload: str, place: Path, backend: str) -> Step:
    """The same in a process that never imports `torch._dynamo`."""
    import foregrad as fg

    fg.configure(lazy_dynamo=True)
    return hit(workload, place, backend)


def hit(workload: str, place: Path, backend: str) -> Step:
    import foregrad as fg

    model, optimizer = build(workload)
    return fg.step(model, optimizer, backend=backend, cache=place / "programs")(step_of(model, optimizer))


def anew(workload: str, place: Path, backend: str) -> Step:
    import foregrad as fg

    model, optimizer = build(workload)
    return fg.step(model, optimizer, backend=backend, cache=False)(step_of(model, optimizer))


SIDES: dict[str, Callable[[str, Path, str], Step]] = {
    "eager": eager,
    "torch.compile": torch_compile,
    "signed artifact": artifact,
    "data-only artifact, kernels kept": artifact,
    "data-only artifact, nothing kept": artifact,
    "cache hit": hit,
    "cache hit, lazy_dynamo": lazy_hit,
    "compiled anew, kernels kept": anew,
}


def prepare(workload: str, place: Path, backend: str) -> None:
    """The inputs, and a step that was saved with the weights that everyone begins with."""
    import workloads

    import foregrad as fg

    _, inputs = workloads.build(workload)
    torch.save([value.clone() for value in inputs], place / "inputs.pt")
    model, optimizer = build(workload)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    step = fg.step(model, optimizer, backend=backend, cache=False)(step_of(model, optimizer))
    for _ in range(2):
        step(*inputs)
    model.load_state_dict(first)
    for held in optimizer.state.values():
        for value in held.values():
            value.zero_()
    step.save(place / "step.fg")


if __name__ == "__main__":
    main(*sys.argv[1:])
