"""A sentence encoder of Sentence Transformers that learns from pairs."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F

from tests.libraries.checks import (
    Case,
    assert_same,
    check_evaluation,
    check_executors,
    check_resume,
    check_training,
    check_view,
)

pytestmark = pytest.mark.soak
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "sits", "runs", "here", "there"]
WORDS += ["red", "blue", "small", "large"]
FIRST = ["a cat sits here", "the dog runs", "a red dog", "the small cat", "a blue cat runs there", "the large dog"]
SECOND = ["the cat sits", "a dog runs here", "the red dog", "a small cat", "the blue cat", "a large dog there"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT with random weights and its tokenizer, as if they had been downloaded."""
    import transformers

    folder = tmp_path_factory.mktemp("encoder")
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


def make_case(folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    def make():
        return SentenceTransformer(modules=[modules.Transformer(str(folder)), modules.Pooling(8)], device="cpu")

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


def test_a_view_computes_what_eval_mode_computes(folder):
    check_view(make_case(folder))


def test_a_fit_has_the_weights_of_a_plain_loop(folder):
    check_training(make_case(folder))


def test_a_crashed_run_resumes_to_the_same_bits(folder, tmp_path):
    check_resume(make_case(folder), tmp_path)


def test_evaluation_and_predictions(folder):
    check_evaluation(make_case(folder))


def test_the_model_encodes_and_is_saved_as_usual(folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    case = make_case(folder)
    model = case.fit(case.learner()).model
    model.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_same(*(torch.from_numpy(each.encode(FIRST, show_progress_bar=False)) for each in (model, again)))


@pytest.mark.cuda
def test_a_captured_step_has_the_bits_of_an_eager_one(folder):
    print(check_executors(make_case(folder)))
