"""Training loops around a compiled model, as people write them: one like nanoGPT's, the Trainer of `transformers`,
averaged weights, and two processes with DistributedDataParallel. Each gives its losses and its last state."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .judge import Compile

VOCABULARY, WIDTH, LENGTH = 32, 16, 8


class Block(nn.Module):
    """Attention and a network of two layers, each beside what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).split(width, dim=2)
        query, key, value = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts)
        dropout = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.network(self.before_network(x))


class Gpt(nn.Module):
    """Gives logits and, where it is told what comes next, the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        if y is None:
            return self.head(self.norm(hidden)[:, [-1], :]), None
        logits = self.head(self.norm(hidden))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)


def nanogpt(compile_fn: Compile) -> Any:
    """Accumulation over two batches, autocast, clipping, decay of matrices, a schedule, evaluation, a sample."""
    plain = Gpt()
    model = compile_fn(plain)
    decayed = [p for p in plain.parameters() if p.dim() >= 2]
    others = [p for p in plain.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    found: list[Any] = []
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step + 1)
        if step % 2 == 0:
            found.append(_evaluate(model))
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = model(*_batch())
                loss = loss / 2
            loss.backward()
        found.append((loss.item(), nn.utils.clip_grad_norm_(plain.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return found, _sample(model), dict(plain.state_dict())


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@torch.no_grad()
def _evaluate(model: Any) -> float:
    model.eval()
    losses = torch.stack([model(*_batch())[1] for _ in range(2)])
    model.train()
    return losses.mean().item()


@torch.no_grad()
def _sample(model: Any) -> torch.Tensor:
    model.eval()
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(3):
        logits, _ = model(tokens[:, -LENGTH:])
        tokens = torch.cat([tokens, torch.multinomial(logits[:, -1].softmax(-1), 1)], 1)
    return tokens


def huggingface_trainer(compile_fn: Compile, *, masked: bool) -> Any:
    """Train, evaluate, save, and resume in a second trainer that trains on."""
    import transformers

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(compile_fn, folder, masked, epochs=1)
        trainer.train()
        first = trainer.evaluate()["eval_loss"]
        trainer.save_model(f"{folder}/model")
        resumed = _trainer(compile_fn, folder, masked, epochs=2)
        resumed.train(resume_from_checkpoint=transformers.trainer_utils.get_last_checkpoint(folder))
        losses = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
        saved = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/model").state_dict()
        return first, losses, resumed.evaluate()["eval_loss"], dict(saved)


def _trainer(compile_fn: Compile, folder: str, masked: bool, epochs: int) -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1)
    arguments = transformers.TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    rows = [_row(masked, short=position % 3 == 0) for position in range(8)]
    model = compile_fn(transformers.LlamaForCausalLM(config))
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])


def _row(masked: bool, *, short: bool) -> dict[str, torch.Tensor]:
    tokens, length = torch.randint(3, 64, (10,)), 7 if masked and short else 10
    kept = torch.arange(10) < length
    row = {"input_ids": tokens.where(kept, 0), "labels": tokens.where(kept, -100)}
    return row | ({"attention_mask": kept.long()} if masked else {})


def averaged_weights(compile_fn: Compile) -> Any:
    """`torch.optim.swa_utils`: a model that averages another, its schedule, and statistics for its batch norm."""
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    model = compile_fn(plain)
    averaged = AveragedModel(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    batches = [torch.randn(8, 8) for _ in range(4)]
    losses = []
    for _ in range(3):
        for x in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        averaged.update_parameters(plain)
        schedule.step()
    called = compile_fn(averaged)
    update_bn(batches, called)
    called.eval()
    return losses, called(batches[0]), dict(averaged.state_dict())


def two_processes(compile_fn: Compile, *, where: str) -> Any:
    """What each of two processes has after training with DistributedDataParallel and gloo."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "tests.conformance.data_parallel"]
        arguments = [where, compile_fn.__name__, folder, str(torch.initial_seed())]
        running = [
            subprocess.Popen([*command, *arguments, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)
        ]
        failed = [text for process in running if (text := process.communicate()[1]) and process.returncode]
        if failed:
            _raise(failed)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in (0, 1)]


def _raise(texts: list[str]) -> None:
    """The error of the process that has failed by itself, and not since the other has left."""
    import foregrad as fg

    text = next((text for text in texts if "CaptureError" in text), texts[0])
    if "CaptureError: " in text:
        raise fg.CaptureError(text.rpartition("CaptureError: ")[2])
    raise RuntimeError(text[-1500:])


LOOPS: dict[str, Callable[[Compile], Any]] = {
    "torch a loop like nanoGPT's": nanogpt,
    "torch averaged weights": averaged_weights,
    "torch a compiled model in DistributedDataParallel": functools.partial(two_processes, where="inside"),
    "torch DistributedDataParallel, compiled": functools.partial(two_processes, where="around"),
    "transformers Trainer": functools.partial(huggingface_trainer, masked=False),
    "transformers Trainer with padding": functools.partial(huggingface_trainer, masked=True),
}
