"""Libraries of others, as their documentation calls them: models of timm, diffusers, torch_geometric and peft, and
training loops of Lightning, Accelerate and torchdiffeq. They are no part of what the tests install: `make libraries`
does."""

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import torchvision_kernels
from .judge import Compile, Result, Status, Sweep, Trial, judge
from .loops import LOOPS as WHOLE_LOOPS
from .modules import see_training_call
from .observe import Seen, see

#: A model, and the arguments that it is called with.
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

MODELS: dict[str, Callable[[], Made]] = {}
LOOPS: dict[str, Callable[[Compile], Any]] = {}


def names() -> tuple[str, ...]:
    return (*MODELS, *LOOPS)


def check(name: str, compile_fn: Compile) -> Iterator[Result]:
    library = name.partition(" ")[0]
    if importlib.util.find_spec(library) is None:
        yield Result("libraries", name, Status.EXCLUDED, f"{library} is not installed")
        return
    torchvision_kernels.stand_in()
    if name in LOOPS:
        trial = Trial("training", functools.partial(_start_loop, LOOPS[name]), _start_loop.__code__)
    else:
        trial = Trial(
            "training", functools.partial(_start_model, MODELS[name]), type(MODELS[name]()[0]).forward.__code__
        )
    yield judge("libraries", name, [trial], compile_fn)


SWEEP = Sweep("libraries", names, check)


def _start_model(make: Callable[[], Made], compile_fn: Compile) -> Callable[[int], Seen]:
    torch.manual_seed(0)
    model, args, kwargs = make()
    return functools.partial(see_training_call, compile_fn(model.train()), args, kwargs, of=model)


def _start_loop(run: Callable[[Compile], Any], compile_fn: Compile) -> Callable[[int], Seen]:
    def call(seed: int) -> Seen:
        torch.manual_seed(seed)
        return see("after training", run(compile_fn))

    return call


# timm


def _timm(name: str) -> Made:
    import timm

    side = timm.get_pretrained_cfg(name).input_size[1]
    return timm.create_model(name, num_classes=10), (torch.randn(2, 3, side, side),), {}


_TIMM = (
    *("test_byobnet", "test_coatnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet"),
    *("test_efficientnet_evos", "test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout", "test_maxvit"),
    *("test_nfnet", "test_resnet", "test_vit", "test_vit2", "test_vit3", "test_vit4", "test_vit_relpos", "resnet18"),
    *("mobilenetv3_small_050", "efficientnet_b0", "convnext_atto", "vit_tiny_patch16_224", "regnetx_002", "levit_128s"),
    *("mixer_s32_224", "xcit_nano_12_p16_224", "pvt_v2_b0", "edgenext_xx_small", "repvgg_a0", "poolformer_s12"),
    *("mobilenetv2_050", "ghostnet_050", "mobilevit_xxs", "efficientformer_l1", "fastvit_t8", "inception_next_tiny"),
    *("visformer_tiny", "densenet121", "dla34"),
)
MODELS |= {f"timm {name}": functools.partial(_timm, name) for name in _TIMM}


# torch_geometric


def _graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(10, 8), torch.randint(0, 10, (2, 30))


def _geometric(name: str, *args: Any, **kwargs: Any) -> Made:
    import torch_geometric.nn

    return getattr(torch_geometric.nn, name)(*args, **kwargs), _graph(), {}


class _Forces(nn.Module):
    """An energy, and what it pulls each atom with."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, atoms: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position = position.detach().requires_grad_()
        energy = self.energy(atoms, position).sum()
        (slope,) = torch.autograd.grad(energy, position, create_graph=True)
        return energy, -slope


def _every_pair(position: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which atoms see each other: torch_geometric's own choice needs kernels of another package."""
    count = position.shape[0]
    first = torch.arange(count).repeat_interleave(count - 1)
    second = torch.cat([torch.cat([torch.arange(i), torch.arange(i + 1, count)]) for i in range(count)])
    return torch.stack([first, second]), (position[first] - position[second]).norm(dim=-1)


def _force_field() -> Made:
    import torch_geometric.nn

    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 2, "num_gaussians": 8}
    model = torch_geometric.nn.SchNet(**sizes, interaction_graph=_every_pair)
    return _Forces(model), (torch.tensor([6, 1, 1, 1, 8]), torch.randn(5, 3)), {}


MODELS |= {
    "torch_geometric GCNConv": lambda: _geometric("GCNConv", 8, 4),
    "torch_geometric GATConv": lambda: _geometric("GATConv", 8, 4, heads=2),
    "torch_geometric SAGEConv": lambda: _geometric("SAGEConv", 8, 4),
    "torch_geometric GINConv": lambda: _geometric("GINConv", nn.Linear(8, 4)),
    "torch_geometric GraphConv": lambda: _geometric("GraphConv", 8, 4),
    "torch_geometric TransformerConv": lambda: _geometric("TransformerConv", 8, 4),
    "torch_geometric TAGConv": lambda: _geometric("TAGConv", 8, 4),
    "torch_geometric EdgeConv": lambda: _geometric("EdgeConv", nn.Linear(16, 4)),
    "torch_geometric GIN": lambda: _geometric("GIN", 8, 16, 2, 4),
    "torch_geometric GCN": lambda: _geometric("GCN", 8, 16, 2, 4, dropout=0.1),
    "torch_geometric GAT": lambda: _geometric("GAT", 8, 16, 2, 4, heads=2, dropout=0.1),
    "torch_geometric SchNet with forces": lambda: _force_field(),
}


# diffusers


def _unet() -> Made:
    from diffusers import UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = UNet2DModel(sample_size=16, layers_per_block=1, block_out_channels=(32, 64), **blocks)
    return model, (torch.randn(2, 3, 16, 16), torch.tensor([3, 7])), {"return_dict": False}


def _conditioned_unet() -> Made:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    return model, (torch.randn(2, 4, 16, 16), torch.tensor([3, 7]), torch.randn(2, 5, 32)), {"return_dict": False}


def _autoencoder() -> Made:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    return model, (torch.randn(2, 3, 16, 16),), {"return_dict": False}


MODELS |= {
    "diffusers UNet2DModel": _unet,
    "diffusers UNet2DConditionModel": _conditioned_unet,
    "diffusers AutoencoderKL": _autoencoder,
}


# peft


def _adapted(kind: str, **options: Any) -> Made:
    import peft
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, use_cache=False)
    adapter = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    tokens = torch.randint(3, 60, (2, 12))
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter)
    return model, (), {"input_ids": tokens, "labels": tokens}


MODELS |= {
    "peft LoRA": lambda: _adapted("LoraConfig", target_modules=["q_proj", "v_proj"], r=4, lora_dropout=0.1),
    "peft DoRA": lambda: _adapted("LoraConfig", target_modules=["q_proj"], use_dora=True),
    "peft IA3": lambda: _adapted(
        "IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "peft prompt tuning": lambda: _adapted("PromptTuningConfig", num_virtual_tokens=3),
}


# Training loops


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.BatchNorm1d(16), nn.Linear(16, 1))


def _batches(**options: Any) -> torch.utils.data.DataLoader[Any]:
    x = torch.randn(32, 8)
    data = torch.utils.data.TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())
    return torch.utils.data.DataLoader(data, 8, **options)


def _lightning(compile_fn: Compile, *, forward: bool) -> Any:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net
            self.losses: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = F.binary_cross_entropy_with_logits(self(batch[0]), batch[1])
            self.log("loss", loss)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.losses.append(F.binary_cross_entropy_with_logits(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Classifier(_net() if forward else compile_fn(_net()))
    if forward:
        model.forward = compile_fn(model.forward)  # type: ignore[method-assign]
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, **quiet).fit(
        model, _batches(shuffle=True), _batches()
    )
    return model.losses, dict(model.state_dict())


def _accelerate(compile_fn: Compile, *, prepared: bool, **options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, **options)
    model = _net() if prepared else compile_fn(_net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, _batches(shuffle=True))
    called = compile_fn(model) if prepared else model
    losses = []
    for _ in range(2):
        for x, y in batches:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = F.mse_loss(called(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.detach())
    return losses, dict(model.state_dict())


class _Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


def _ode(compile_fn: Compile, *, solver: str, method: str) -> Any:
    import torchdiffeq

    field = _Field()
    optimizer = torch.optim.RMSprop(field.parameters(), 1e-3)
    solve = getattr(torchdiffeq, solver)
    solved = compile_fn(lambda y: solve(field, y, torch.tensor([0.0, 0.5, 1.0]), method=method))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = solved(torch.tensor([[2.0, 0.0]])).abs().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, dict(field.state_dict())


LOOPS |= WHOLE_LOOPS | {
    "lightning a compiled network": functools.partial(_lightning, forward=False),
    "lightning a compiled forward": functools.partial(_lightning, forward=True),
    "accelerate compiled, then prepared": functools.partial(_accelerate, prepared=False),
    "accelerate prepared, then compiled": functools.partial(_accelerate, prepared=True),
    "accelerate accumulation": functools.partial(_accelerate, prepared=True, gradient_accumulation_steps=2),
    "accelerate bf16": functools.partial(_accelerate, prepared=True, mixed_precision="bf16"),
    **{
        f"torchdiffeq {solver} {method}": functools.partial(_ode, solver=solver, method=method)
        for solver in ("odeint", "odeint_adjoint")
        for method in ("euler", "midpoint", "rk4", "explicit_adams")
    },
}
