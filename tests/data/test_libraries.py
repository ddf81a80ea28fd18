"""Data of other libraries: Hugging Face, TensorDict, PyTorch Geometric, webdataset, torchdata."""

import datasets
import pytest
import torch
import webdataset
from tensordict import TensorDict
from torch import nn
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, IterableWrapper, Mapper, Prefetcher, Unbatcher
from torchdata.nodes import Loader as NodeLoader

import stoker
from stoker.data import Loader
from stoker.errors import BadData, InvalidArgument

X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24.0)[:, None]


class NamedInput(nn.Linear):
    """Takes the column `x` of a mapping."""

    def forward(self, x):
        return super().forward(x)


def train(source, **options):
    torch.manual_seed(0)
    learner = stoker.Learner(NamedInput(3, 1), loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=1e-3, seed=2)
    return learner.fit(source, epochs=2, show=False, **options).model.weight


def test_rows_tensors_and_tensordicts_train_alike():
    expected = train({"x": X, "y": Y}, batch_size=5)
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    nested = TensorDict({"x": X, "y": Y}, batch_size=[24])
    for source in (rows, rows.with_format("torch"), nested, [nested[number] for number in range(24)]):
        torch.testing.assert_close(train(source, batch_size=5), expected)


def test_a_tensordict_gives_nested_dicts():
    source = TensorDict({"a": torch.arange(4), "b": {"c": torch.arange(8).view(4, 2)}}, batch_size=[4])
    batch = next(iter(Loader(source, batch_size=2)))
    assert type(batch) is dict
    assert batch["b"]["c"].tolist() == [[0, 1], [2, 3]]
    assert Loader(source, batch_size=2).nbytes is not None  # columns in memory


def test_the_error_for_ragged_rows_of_tokens_names_the_ways_to_pad():
    rows = datasets.Dataset.from_dict({"input_ids": [[1], [1, 2]], "label": [0, 1]})
    with pytest.raises(BadData, match=r"collate_fn=fn\) .*Loader\(..., pad_to=64\) pads sequences to a multiple of 64"):
        next(iter(Loader(rows, batch_size=2)))


def node_loader():
    return NodeLoader(Batcher(IterableWrapper(list(zip(X, Y, strict=True))), 5, drop_last=False))


def collate_batches(loader):
    return [torch.stack([x for x, _ in batch]) for batch in loader]


def test_streams_of_batches_are_used_as_they_are():
    pipeline = webdataset.DataPipeline(lambda: iter(list(zip(X, Y, strict=True))), webdataset.batched(5))
    web = webdataset.WebLoader(pipeline, batch_size=None, num_workers=0)
    expected = train(Loader((X, Y), batch_size=5))
    torch.testing.assert_close(train(web), expected)
    torch.testing.assert_close(train(Loader(pipeline, batched=True)), expected)
    with pytest.raises(InvalidArgument, match="stream of batches is used as it is, so shuffle can't be combined"):
        Loader(web, shuffle=0)
    with pytest.raises(InvalidArgument, match="a stream of batches can't be shared by 2 ranks"):
        Loader(web).shared(0, 2)
    assert len(list(Loader(web, sharded=True).shared(0, 2))) == 5


def test_nodes_of_torchdata_continue_from_their_state():
    loader = Loader(node_loader(), batched=True)
    batches = iter(loader.at(epoch=0))
    next(batches), next(batches)
    state, rest = loader.source_state(epoch=0, batch=2), collate_batches(batches)
    again = Loader(node_loader(), batched=True).at(epoch=0, batch=2, state=state)
    assert all(torch.equal(one, other) for one, other in zip(collate_batches(again), rest, strict=True))
    assert len(rest) == 3


def test_batches_of_torchdata_and_of_unknown_loaders_are_not_taken_for_samples():
    expected = train(Loader((X, Y), batch_size=5))
    root = Prefetcher(Mapper(node_loader().root, default_collate), 2)
    for source in (root, NodeLoader(root)):
        torch.testing.assert_close(train(source), expected)
    samples = IterableWrapper(list(zip(X, Y, strict=True)))
    torch.testing.assert_close(train(Unbatcher(Batcher(samples, 4, drop_last=False)), batch_size=5), expected)

    class OwnLoader:
        batch_size = 5

        def __iter__(self):
            return zip(X.split(5), Y.split(5), strict=True)

    with pytest.raises(
        InvalidArgument, match=r"a OwnLoader has a batch_size of 5: .* data.Loader\(source, batched=True"
    ):
        train(OwnLoader())
    torch.testing.assert_close(train(Loader(OwnLoader(), batched=True)), expected)
    assert next(iter(Loader(OwnLoader(), batched=False, batch_size=2)))[0].shape == (2, 5, 3)


def test_a_node_of_torchdata_starts_again_in_each_epoch():
    """It can be read only once by itself; its own Loader resets it."""
    loader = Loader(node_loader().root, batched=True)
    first, second = (collate_batches(loader.at(epoch=epoch)) for epoch in (0, 1))
    assert len(first) == 5 and all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    again = Loader(node_loader().root, batched=True)
    batches = iter(again.at(epoch=0))
    next(batches), next(batches)
    state = again.source_state(epoch=0, batch=2)
    rest = collate_batches(Loader(node_loader().root, batched=True).at(epoch=0, batch=2, state=state))
    assert len(rest) == 3 and torch.equal(rest[0], first[2])


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_graphs_are_collated_as_pytorch_geometric_does():
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    graphs = [
        Data(x=torch.randn(number % 3 + 1, 2), edge_index=torch.zeros(2, 1).long(), y=number) for number in range(7)
    ]
    own, theirs = list(Loader(graphs, batch_size=3)), list(DataLoader(graphs, batch_size=3))
    for one, other in zip(own, theirs, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.batch, other.batch)
        assert one.y.tolist() == other.y.tolist()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tokenised_rows_train_with_a_collator_of_transformers():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        PreTrainedTokenizerFast,
    )

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2, "c": 3}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    texts = [" ".join("abcab"[: number % 5 + 1]) for number in range(20)]
    rows = [{**tokenizer(text), "label": number % 2} for number, text in enumerate(texts)]
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    config = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, hidden_dropout_prob=0.0)

    def final_loss(source, **options):
        torch.manual_seed(0)
        learner = stoker.Learner(BertForSequenceClassification(config), seed=0)
        return learner.fit(source, epochs=1, show=False, **options).history["train/loss"][0]

    collator = DataCollatorWithPadding(tokenizer)
    padded = tokenizer(texts, padding=True, return_tensors="pt")  # a BatchEncoding
    padded["labels"] = torch.arange(20) % 2
    expected = final_loss(padded, batch_size=4)
    for source in (rows, datasets.Dataset.from_list(rows)):
        assert final_loss(Loader(source, batch_size=4, shuffle=0, collate_fn=collator)) == pytest.approx(expected)
