"""A sentence encoder of Sentence Transformers that learns from pairs."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F

from tests.libraries.checks import Case, assert_same

pytestmark = pytest.mark.soak
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "sits", "runs", "here", "there"]
WORDS += ["red", "blue", "small", "large"]
FIRST = ["a cat sits here", "the dog runs", "a red dog", "the small cat", "a blue cat runs there", "the large dog"]
SECOND = ["the cat sits", "a dog runs here", "the red dog", "a small cat", "the blue cat", "a large dog there"]


@functools.cache
def encoder():
    """A folder with a BERT with random weights and its tokenizer, as if they had been downloaded."""
    import transformers

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def embed(model, features):
    return model(dict(features))["sentence_embedding"]


def loss(model, batch):
    """The other sentences of the batch are the negative ones."""
    first, second = (F.normalize(embed(model, batch[name]), dim=1) for name in ("first", "second"))
    return F.cross_entropy(first @ second.t() / 0.1, torch.arange(len(first), device=first.device))


def make_case():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    def make():
        return SentenceTransformer(modules=[modules.Transformer(str(encoder())), modules.Pooling(8)], device="cpu")

    tokenizer = make().tokenizer
    rows = {}
    for name, sentences in (("first", FIRST), ("second", SECOND)):
        found = tokenizer(sentences, padding="max_length", max_length=8, return_tensors="pt")
        rows[name] = {key: found[key] for key in ("input_ids", "attention_mask")}
    return Case(
        make,
        rows,
        loss,
        {"step": loss, "predict_step": embed},
        batch_size=3,
        inputs=rows["first"],
        predict=embed,
        count=lambda batch: len(batch["first"]["input_ids"]),
    )


def test_the_model_encodes_and_is_saved_as_usual(tmp_path):
    from sentence_transformers import SentenceTransformer

    case = make_case()
    model = case.fit(case.learner()).model
    model.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_same(*(torch.from_numpy(each.encode(FIRST, show_progress_bar=False)) for each in (model, again)))
