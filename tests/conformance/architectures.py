"""Architectures of `transformers`, small and random: loss and every gradient, with and without dropout."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .judge import Compile, Result, Sweep, Trial, foregrad_dynamic, judge
from .modules import see_training_call
from .observe import Seen

VOCABULARY, LENGTH, BATCH = 64, 12, 2


@dataclass(frozen=True)
class Architecture:
    """A model class, what its configuration must say, and the inputs that it trains on."""

    model: str
    config: str
    inputs: Callable[[], dict[str, torch.Tensor]]
    options: dict[str, Any] = field(default_factory=dict)


def names() -> tuple[str, ...]:
    return tuple(ARCHITECTURES)


def check(name: str, compile_fn: Compile) -> Iterator[Result]:
    architecture = ARCHITECTURES[name]
    # Where sizes vary, tensors are torch's fake ones, and `transformers` takes the path that it has for tracing: it
    # makes masks and repeats heads which it leaves out otherwise.
    trials = _trials(architecture, is_close_enough=compile_fn is foregrad_dynamic)
    yield judge("architectures", name, trials, compile_fn)


SWEEP = Sweep("architectures", names, check)


def _trials(architecture: Architecture, is_close_enough: bool) -> Iterator[Trial]:
    code = _model_class(architecture).forward.__code__
    for label, dropout in (("no dropout", 0.0), ("dropout 0.1", 0.1)):
        yield Trial(label, functools.partial(_start, architecture, dropout), code, is_close_enough)


def _start(architecture: Architecture, dropout: float, compile_fn: Compile) -> Callable[[int], Seen]:
    torch.manual_seed(0)
    model = build(architecture, dropout)
    inputs = architecture.inputs()
    return functools.partial(see_training_call, compile_fn(model), (), inputs)


def build(architecture: Architecture, dropout: float) -> nn.Module:
    import transformers

    config = getattr(transformers, architecture.config)(**(_SMALL | architecture.options))
    for key, value in config.to_dict().items():
        if "drop" in key and "layer" not in key and isinstance(value, float):
            setattr(config, key, dropout)
    return _model_class(architecture)(config).train()


def _model_class(architecture: Architecture) -> type[nn.Module]:
    import transformers

    return getattr(transformers, architecture.model)


def _tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def _causal() -> dict[str, torch.Tensor]:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens}


def _masked() -> dict[str, torch.Tensor]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -3:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}


def _unpadded() -> dict[str, torch.Tensor]:
    """No mask: given one, most encoders of `transformers` read it in Python, to leave it out if it masks nothing."""
    return {"input_ids": _tokens(), "labels": _tokens()}


def _translated() -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(), "labels": _tokens()}


def _image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.tensor([0, 1])}


_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {"num_key_value_heads": 2}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 2,
}
_GPT2 = {"pad_token_id": None, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_DISTIL = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_SMALL_IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 3}

ARCHITECTURES = {
    "GPT2": Architecture("GPT2LMHeadModel", "GPT2Config", _causal, _GPT2),
    "Llama": Architecture("LlamaForCausalLM", "LlamaConfig", _causal, _GROUPED),
    "Mistral": Architecture("MistralForCausalLM", "MistralConfig", _causal, _GROUPED | {"sliding_window": 4}),
    "Qwen2": Architecture("Qwen2ForCausalLM", "Qwen2Config", _causal, _GROUPED),
    "Qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", _causal, _GROUPED | {"head_dim": 8}),
    "Gemma": Architecture("GemmaForCausalLM", "GemmaConfig", _causal, _GROUPED | {"head_dim": 8}),
    "Gemma2": Architecture("Gemma2ForCausalLM", "Gemma2Config", _causal, _GROUPED | {"head_dim": 8}),
    "Phi": Architecture("PhiForCausalLM", "PhiConfig", _causal),
    "OPT": Architecture("OPTForCausalLM", "OPTConfig", _causal, {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "GPT-J": Architecture("GPTJForCausalLM", "GPTJConfig", _causal, _GPT2 | {"rotary_dim": 4}),
    "Phi3": Architecture("Phi3ForCausalLM", "Phi3Config", _causal, _GROUPED),
    "Olmo2": Architecture("Olmo2ForCausalLM", "Olmo2Config", _causal, _GROUPED),
    "StableLM": Architecture("StableLmForCausalLM", "StableLmConfig", _causal, _GROUPED),
    "Starcoder2": Architecture("Starcoder2ForCausalLM", "Starcoder2Config", _causal, _GROUPED),
    "Granite": Architecture("GraniteForCausalLM", "GraniteConfig", _causal, _GROUPED),
    "Cohere": Architecture("CohereForCausalLM", "CohereConfig", _causal, _GROUPED),
    "GPTNeoX": Architecture("GPTNeoXForCausalLM", "GPTNeoXConfig", _causal),
    "Bloom": Architecture("BloomForCausalLM", "BloomConfig", _causal, {"n_layer": 2, "n_head": 4}),
    "Falcon": Architecture("FalconForCausalLM", "FalconConfig", _causal),
    "BERT": Architecture("BertForMaskedLM", "BertConfig", _unpadded),
    "RoBERTa": Architecture("RobertaForMaskedLM", "RobertaConfig", _unpadded),
    "XLM-RoBERTa": Architecture("XLMRobertaForMaskedLM", "XLMRobertaConfig", _unpadded),
    "DistilBERT": Architecture("DistilBertForMaskedLM", "DistilBertConfig", _unpadded, _DISTIL),
    "Electra": Architecture("ElectraForMaskedLM", "ElectraConfig", _unpadded, {"embedding_size": 32}),
    "Albert": Architecture("AlbertForMaskedLM", "AlbertConfig", _unpadded, {"embedding_size": 32}),
    "DeBERTa-v2": Architecture("DebertaV2ForMaskedLM", "DebertaV2Config", _masked, _DEBERTA),
    "T5": Architecture("T5ForConditionalGeneration", "T5Config", _translated, _T5),
    "BART": Architecture("BartForConditionalGeneration", "BartConfig", _translated, _BART),
    "ViT": Architecture("ViTForImageClassification", "ViTConfig", _image, _SMALL_IMAGE),
    "DeiT": Architecture("DeiTForImageClassification", "DeiTConfig", _image, _SMALL_IMAGE),
}
