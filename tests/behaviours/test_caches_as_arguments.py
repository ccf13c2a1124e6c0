"""Caches of `transformers` among the arguments, and their outputs."""

import pytest
import torch

import foregrad as fg
from tests.compare import leaf


def random_model(name):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if name == "gpt2":
        chances = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        return GPT2LMHeadModel(
            GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=32, **chances, **ends)
        )
    return LlamaForCausalLM(
        LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    )


def decode(model, count):
    """Tokens, each the likeliest after those before, and what their logits sum up to."""
    from transformers import DynamicCache

    cache = DynamicCache()
    out = model(torch.arange(8).view(2, 4), past_key_values=cache, use_cache=True)
    tokens, total = [], out.logits.sum()
    for _ in range(count):
        assert out.past_key_values is cache
        tokens.append(out.logits[:, -1:].argmax(-1))
        out = model(tokens[-1], past_key_values=out.past_key_values, use_cache=True)
        total = total + out.logits.square().sum()
    return torch.cat(tokens, 1), total, cache


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_greedy_decoding_with_a_cache(name):
    model = random_model(name)
    function = fg.compile(model, backend="eager", cache=False)
    found, expected = decode(function, 6), decode(model, 6)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    for one, other in zip(found[2].layers, expected[2].layers, strict=True):
        assert torch.equal(one.keys, other.keys)
    assert len(function.captures) == 3  # an empty cache, a filled one, one of any length
    parameters = list(model.parameters())
    grads = [torch.autograd.grad(total, parameters) for total in (found[1], expected[1])]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # terms are added in another order


def test_a_cache_that_grows():
    from transformers import DynamicCache

    def attends(cache, x):
        keys, values = cache.update(x, x + 1, 0)
        return (keys * values).sum(), cache

    function = fg.compile(attends, backend="eager", cache=False)
    caches = DynamicCache(), DynamicCache()
    for _ in range(5):
        x = leaf(1, 2, 3, 4)
        (found, cache), (expected, _) = function(caches[0], x), attends(caches[1], x)
        assert torch.equal(found, expected)
        assert cache is caches[0]
        assert torch.equal(caches[0].layers[0].keys, caches[1].layers[0].keys)
        assert torch.autograd.grad(found, x)[0].equal(torch.autograd.grad(expected, x)[0])
        for one in caches:
            one.layers[0].keys, one.layers[0].values = one.layers[0].keys.detach(), one.layers[0].values.detach()
    assert len(function.captures) == 3


def test_a_refused_cache_is_as_it_was():
    from transformers import DynamicCache

    def asks(cache, x):
        keys, _ = cache.update(x, x, 0)
        return keys if keys.sum() > 0 else cache

    cache, x = DynamicCache(), torch.ones(1, 1, 2, 4)
    with pytest.raises(fg.CaptureError, match="needed in Python"):
        fg.compile(asks, backend="eager", questions="error")(cache, x)
    assert cache.layers == []
    cache.update(x, x, 0)
    keys = cache.layers[0].keys
    with pytest.raises(fg.CaptureError, match="needed in Python"):
        fg.compile(asks, backend="eager", questions="error")(cache, x)
    assert cache.layers[0].keys is keys


def test_a_cache_of_two_caches():
    from transformers import DynamicCache, EncoderDecoderCache

    def attends(cache, x):
        keys, _ = cache.self_attention_cache.update(x, x, 0)
        cross, _ = cache.cross_attention_cache.update(x * 2, x, 0)
        cache.is_updated[0] = True
        return keys + cross, cache

    function = fg.compile(attends, backend="eager")
    x = torch.ones(1, 1, 2, 4)
    for _ in range(2):
        one, other = (EncoderDecoderCache(DynamicCache(), DynamicCache()) for _ in range(2))
        found, cache = function(one, x)
        assert torch.equal(found, attends(other, x)[0])
        assert cache is one
        assert one.is_updated == {0: True}
        assert torch.equal(one.cross_attention_cache.layers[0].keys, x * 2)
    assert len(function.captures) == 1


def test_an_output_that_is_changed():
    from transformers.modeling_outputs import BaseModelOutputWithPast

    def changes(out):
        out.last_hidden_state = out.last_hidden_state * 2
        out["attentions"] = (out.last_hidden_state + 1,)
        return out, out.last_hidden_state.sum()

    function = fg.compile(changes, backend="eager")
    for _ in range(2):
        x = leaf(3)
        one, other = (BaseModelOutputWithPast(last_hidden_state=x) for _ in range(2))
        (found, total), (expected, _) = function(one), changes(other)
        assert found is one
        assert list(one) == list(other)
        assert torch.equal(one.last_hidden_state, expected.last_hidden_state)
        assert torch.equal(one["attentions"][0], expected.attentions[0])
        assert one.attentions[0] is one["attentions"][0]
        assert torch.autograd.grad(total, x)[0].equal(torch.full((3,), 2.0))
    assert len(function.captures) == 1


def test_tokens_of_a_tokenizer():
    from transformers import BatchEncoding

    def reads(batch):
        batch["length"] = batch["input_ids"].sum(1)
        return batch.input_ids * 2

    function = fg.compile(reads, backend="eager")
    for _ in range(2):
        batch = BatchEncoding({"input_ids": torch.randint(9, (2, 3))})
        assert torch.equal(function(batch), batch["input_ids"] * 2)
        assert torch.equal(batch["length"], batch["input_ids"].sum(1))
    assert len(function.captures) == 1
