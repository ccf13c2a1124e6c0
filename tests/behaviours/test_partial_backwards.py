"""Any backward that is asked for can be made from what the forward has kept, whatever the first one needed."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from tests.compare import HigherGradients, compiled, grads_of, leaf, same_as_eager


class Blocks(nn.Module):
    """Logits and a loss, as language models return them, with checkpoints that read parameters of the modules."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x, target):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = self.head(x)
        return logits, nn.functional.cross_entropy(logits, target)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@same_as_eager
def test_a_model_with_checkpoints_and_a_backward_from_some_results(wrap, used):
    model = Blocks()
    run, x = wrap(model), leaf(5, 4)
    for _ in range(2):
        results = run(x, torch.tensor([0, 1, 2, 0, 1]))
        sum(results[place].sum() for place in used).backward()
    return grads_of(x, *model.parameters())


@same_as_eager
def test_one_graph_differentiated_from_each_result_in_turn(wrap):
    model = Blocks()
    x = leaf(5, 4)
    logits, loss = wrap(model)(x, torch.tensor([0, 1, 2, 0, 1]))
    loss.backward(retain_graph=True)
    logits.sum().backward(retain_graph=True)
    (loss * logits.mean()).backward()
    return grads_of(x, *model.parameters())


@same_as_eager
def test_a_second_derivative_of_one_result_through_checkpoints(wrap):
    model = Blocks().eval()
    x = leaf(5, 4)
    _, loss = wrap(model)(x, torch.tensor([0, 1, 2, 0, 1]))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient.square().sum().backward()
    return HigherGradients([x.grad, *(p.grad for p in model.parameters())])


@same_as_eager
def test_a_checkpoint_of_parameters_that_were_replaced_before_the_call(wrap):
    model = Blocks().eval()
    run, x = wrap(model), leaf(5, 4)
    sum(result.sum() for result in run(x, torch.tensor([0, 1, 2, 0, 1]))).backward()
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
    _, loss = run(x, torch.tensor([0, 1, 2, 0, 1]))
    loss.backward()
    return grads_of(x, *model.parameters())


def test_a_backward_that_reads_what_the_call_did_not_is_refused_in_words():
    held = [torch.ones(3)]

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            return g * held[0] + h

    a, _ = compiled(Reads.apply)(leaf(3))
    held[0] = torch.ones(3) * 2
    with pytest.raises(fg.ForegradError, match="reads 1 tensors that the call did not use"):
        a.sum().backward()


@same_as_eager
def test_a_language_model_with_gradient_checkpointing(wrap):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}
    config = transformers.GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).train()
    model.gradient_checkpointing_enable()
    run, tokens = wrap(model), torch.randint(0, 11, (2, 6))
    for _ in range(2):
        run(tokens, labels=tokens).loss.backward()
    return grads_of(*model.parameters())
