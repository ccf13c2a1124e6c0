"""A small random configuration of any class of `transformers`: its defaults, with sizes from one table of names."""

import dataclasses
from typing import Any

VOCABULARY = 128
IMAGE = 64

#: Fields of sizes; a default that is smaller stays. What a table like this cannot know stands in `EXCEPTIONS`.
SIZES: dict[str, int] = {
    **dict.fromkeys(
        ("vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "n_vocab", "t2u_vocab_size"), VOCABULARY
    ),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "hidden_dim", "encoder_hidden_dim", "decoder_hidden_dim"), 32),
    **dict.fromkeys(("attention_hidden_size", "output_hidden_size", "out_hidden_size", "model_dim"), 32),
    **dict.fromkeys(("hidden_size_per_layer_input", "projection_dim", "classifier_proj_size", "d_embed"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "d_inner", "ffn_hidden_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "expert_ffn_hidden_size"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "dim_feedforward", "encoder_intermediate_size"), 64),
    **dict.fromkeys(("speech_encoder_intermediate_size", "t2u_encoder_ffn_dim", "t2u_decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "depth", "num_blocks"), 2),
    **dict.fromkeys(("speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers", "decoder_num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads", "decoder_self_attention_heads"), 4),
    **dict.fromkeys(("decoder_cross_attention_heads", "speech_encoder_attention_heads", "index_n_heads"), 4),
    **dict.fromkeys(("t2u_encoder_attention_heads", "t2u_decoder_attention_heads", "encoder_num_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "d_head", "dim_head", "v_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "index_head_dim", "swa_head_dim", "global_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "rotary_dim", "swa_v_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_heads"), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("sliding_window", "attention_window", "local_attention", "window_size_text"), 8),
    **dict.fromkeys(("image_size", "input_size", "img_size"), IMAGE),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank", "mamba_chunk_size", "chunk_size"), 4),
    **dict.fromkeys(("num_queries",), 8),
    **dict.fromkeys(("num_denoising",), 4),
    **dict.fromkeys(("num_mel_bins", "input_feat_per_channel"), 16),
    **dict.fromkeys(("num_conv_pos_embeddings",), 16),
    **dict.fromkeys(("num_conv_pos_embedding_groups",), 4),
    **dict.fromkeys(("index_topk",), 4),
    **dict.fromkeys(("num_labels",), 3),
}
#: Fields with one number for each of several stages, which become ones.
DEPTHS = ("depths", "layers", "encoder_depths", "num_blocks_per_stage")

#: What the rules do not find out, by `model_type`.
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64},
    "bamba": {"attn_layer_indices": [1]},
    "bros": {"hidden_size": 64},
    "donut-swin": {"num_heads": (2, 2, 4, 4), "window_size": 2},
    "dots1": {"n_shared_experts": 1, "topk_group": 1, "n_group": 1},
    "efficientnet": {"hidden_dim": 2560},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 5,
        "activation_sparsity_pattern": None,
        "intermediate_size": 64,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "lw_detr": {"group_detr": 2},
    "mamba2": {"num_heads": 8},
    "neomme": {"head_dim": 16},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 1, "num_cross_attention_heads": 1},
    "reformer": {"axial_pos_embds": False, "lsh_attn_chunk_length": 2, "local_attn_chunk_length": 2, "num_buckets": 2},
    "rf_detr": {"group_detr": 2},
    "swin": {"num_heads": (2, 2, 4, 4), "window_size": 2},
    "swinv2": {"num_heads": (2, 2, 4, 4), "window_size": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 9, "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
}
#: What a class asks for that others of its type do not, by its name.
CLASSES: dict[str, dict[str, Any]] = {"ReformerModelWithLMHead": {"is_decoder": True}}

#: Sizes that are also given where the default is none.
NEVER_NONE = ("vocab_size", "head_dim", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok")
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def small(kind: type, **options: Any) -> Any:
    """A configuration of this class; options win."""
    defaults = kind()
    chosen: dict[str, Any] = {}
    taken: list[str] = []
    for name in _names(kind):
        value = _small_value(name, vars(defaults).get(name), defaults, taken)
        if value is not _AS_IT_IS:
            chosen[name] = value
    config = kind(**(chosen | EXCEPTIONS.get(getattr(kind, "model_type", ""), {}) | options))
    for name, value in SPECIAL_TOKENS.items():
        setattr(config, name, value)
    if config.is_encoder_decoder:
        config.decoder_start_token_id = SPECIAL_TOKENS["pad_token_id"]
    return config


_AS_IT_IS = object()


def _names(kind: type) -> list[str]:
    base = {"num_labels", "architectures", "id2label", "label2id", "transformers_version"}
    return [field.name for field in dataclasses.fields(kind) if field.init and field.name not in base]


def _small_value(name: str, default: Any, defaults: Any, taken: list[str]) -> Any:
    import transformers

    if name == "backbone_config":
        return _AS_IT_IS  # which stages of it are used, and how wide they are, stands in the other fields
    if isinstance(default, transformers.PreTrainedConfig):
        return small(type(default))
    if default is None and name in NEVER_NONE:
        return 4 if name == "num_key_value_heads" else SIZES[name]
    if isinstance(default, bool) or default is None:
        return _AS_IT_IS
    if name == "num_key_value_heads" or name.endswith("_num_key_value_heads"):
        return _key_value_heads(default, defaults)
    if name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        return _layers(default, defaults)
    if name in SIZES and isinstance(default, int):
        return min(default, SIZES[name])
    if name.endswith(("_token_id", "_token_index")) and isinstance(default, int) and default >= VOCABULARY:
        taken.append(name)
        return VOCABULARY - len(taken)
    if name == "image_size" and isinstance(default, (list, tuple)):
        return type(default)(IMAGE for _ in default)
    if name in DEPTHS and isinstance(default, (list, tuple)):
        return type(default)(1 for _ in default)
    return _per_layer(name, default, defaults)


def _key_value_heads(default: Any, defaults: Any) -> int:
    heads = getattr(defaults, "num_attention_heads", default)
    if not isinstance(default, int) or not isinstance(heads, int):
        return _AS_IT_IS
    return min(4, default) if default in (heads, 1) else 2


def _layers(default: Any, defaults: Any) -> Any:
    """As many as show each kind of layer once."""
    if not isinstance(default, int):
        return _AS_IT_IS
    count = 2
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = getattr(defaults, name, None) or []
        count = max([count, *(kinds.index(kind) + 1 for kind in set(kinds))])
    return min(count, default, 8)


def _per_layer(name: str, default: Any, defaults: Any) -> Any:
    """Lists with an item for each layer: computed again if the class computes them, else cut."""
    layers = getattr(defaults, "num_hidden_layers", None)
    if (
        not isinstance(default, (list, tuple))
        or not isinstance(layers, int)
        or len(default) != layers
        or layers < 3
        or hasattr(defaults, "depths")
    ):
        return _AS_IT_IS
    declared = {field.name: field.default for field in dataclasses.fields(type(defaults))}.get(name)
    if declared is None:
        return _AS_IT_IS
    return type(default)(default[: _layers(layers, defaults)])
