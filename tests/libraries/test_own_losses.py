"""The losses of other libraries' models are weighed by what they are means over, and their batches are counted."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data, optim
from stoker.steps import count_samples
from tests.executors.fits import mark_soak

GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = [1, 6, 2, 5, 0, 0, 3, 6, 4, 2, 1]  # of the targets of a sample; the third batch has none
IDS = torch.randint(3, 40, (11, 6), generator=GENERATOR)
TOKENS = IDS.masked_fill(torch.arange(6) >= torch.tensor(LENGTHS)[:, None], -100)
CLASSES = torch.where(TOKENS < 0, TOKENS, TOKENS % 3)
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def bert(head):
    def make(**settings):
        import transformers

        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = transformers.BertConfig(vocab_size=40, num_labels=3, **SIZES, **dropout, **settings)
        return getattr(transformers, f"BertFor{head}")(config)

    return make


def gpt2():
    import transformers

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": 40, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **dropout))


def lora():
    import peft

    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = peft.get_peft_model(gpt2(), config)
    for name, parameter in model.named_parameters():  # they begin with zeros, whose gradients would be zero
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def t5():
    import transformers

    sizes = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0)
    )


CASES = {
    "classification": (bert("SequenceClassification"), torch.arange(11) % 3),
    "masked tokens": (bert("MaskedLM"), TOKENS),
    "tokens": (bert("TokenClassification"), CLASSES),
    "multiple labels": (bert("SequenceClassification"), F.one_hot(torch.arange(11) % 3).float()),
    "next tokens": (gpt2, TOKENS),
    "next tokens with LoRA": (lora, TOKENS),
    "translation": (t5, TOKENS),
}


@pytest.mark.parametrize("step", ["forward", pytest.param("function", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", mark_soak(CASES, {"next tokens"}))
def test_uneven_windows_give_the_gradient_of_all_samples(name, step):
    make, labels = CASES[name]
    rows = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": labels}
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    plain = make()
    expected = plain(**rows).loss
    expected.backward()
    function = None if step == "forward" else lambda model, batch: model(**batch).loss
    learner = stoker.Learner(model, optimizer=optim.SGD(), lr=1.0, seed=0, accumulate=6, step=function)
    fitted = learner.fit(data.Loader(rows, batch_size=2), epochs=1, show=False)
    assert fitted.updates == 1 and not fitted.record.events_of("warning")
    assert fitted.history["train/loss"] == pytest.approx([expected.item()], rel=1e-6)
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        moved = other.detach() if other.grad is None else other.detach() - other.grad
        assert torch.allclose(own, moved, atol=1e-6)
    scores = fitted.evaluate(data.Loader(rows, batch_size=3))
    assert scores["loss"] == pytest.approx(model.eval()(**rows).loss.item(), rel=1e-6)


@pytest.mark.soak
def test_tuples_of_transformers_hold_the_loss():
    class Tuples(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = bert("TokenClassification")()

        def forward(self, **batch):
            return self.model(**batch, return_dict=False)

    rows = {"input_ids": IDS, "labels": CLASSES}
    fitted = stoker.Learner(Tuples, seed=0).fit(rows, epochs=1, show=False)
    plain = stoker.Learner(bert("TokenClassification"), seed=0).fit(rows, epochs=1, show=False)
    assert fitted.history["train/loss"] == plain.history["train/loss"]


@pytest.mark.soak
def test_a_sum_of_means_over_different_things_is_reported():
    rows = {"input_ids": IDS, "labels": TOKENS, "next_sentence_label": torch.arange(11) % 2}
    fitted = stoker.Learner(bert("PreTraining"), seed=0, accumulate=2).fit(rows, epochs=1, show=False)
    (warning,) = fitted.record.events_of("warning")
    assert "not clear what the loss of BertForPreTraining.forward is a mean over" in warning.text
    assert "30 and 11 elements" in warning.text


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # while PyG is imported
def test_batches_of_other_libraries_are_counted():
    from tensordict import TensorDict
    from torch_geometric.data import Batch, Data
    from transformers import BatchEncoding

    graphs = [Data(x=torch.ones(3 + i, 2), edge_index=torch.zeros(2, 1, dtype=torch.long)) for i in range(5)]
    assert count_samples(Batch.from_data_list(graphs)) == 5
    assert count_samples((Batch.from_data_list(graphs), torch.ones(7))) == 5
    assert count_samples(BatchEncoding({"input_ids": IDS, "labels": TOKENS})) == 11
    assert count_samples(TensorDict({"ids": IDS, "inner": {"y": TOKENS}}, batch_size=[11])) == 11
    assert count_samples(TensorDict({"inner": {"y": TOKENS}}, batch_size=[])) == 11


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["BatchEncoding", "TensorDict"])
def test_mappings_of_other_libraries_are_passed_by_name(kind):
    from tensordict import TensorDict
    from transformers import BatchEncoding

    def collate(samples):
        columns = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        return BatchEncoding(columns) if kind == "BatchEncoding" else TensorDict(columns, batch_size=[len(samples)])

    rows = {"input_ids": IDS, "labels": TOKENS}
    expected = stoker.Learner(gpt2, seed=0).fit(data.Loader(rows, batch_size=3), epochs=2, show=False)
    loader = data.Loader(rows, batch_size=3, collate_fn=collate)
    fitted = stoker.Learner(gpt2, seed=0).fit(loader, valid=loader, epochs=2, show=False)
    assert fitted.history["train/loss"] == expected.history["train/loss"]
    loss = fitted.model(**rows).loss.item()
    assert fitted.evaluate(loader)["loss"] == pytest.approx(loss, rel=1e-6)
