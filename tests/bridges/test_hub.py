"""`stoker.hub`: the folder, its model card as huggingface_hub reads it, and pushing up to the call of the network."""

import json
import sys

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import nn

import stoker
from stoker import metrics
from stoker.errors import InvalidArgument, MissingExtra, WrongType
from stoker.hub import push, save_pretrained


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class Size(stoker.Config):
    hidden: int = 4


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    learner = stoker.Learner(Net(), loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy()], lr=1e-2, seed=0)
    return learner.fit((x, (x[:, 0] > 0).long()), valid=0.25, epochs=3, show=False)


def test_the_folder_has_the_weights_the_config_and_a_card_with_the_metrics_of_the_kept_epoch(fitted, tmp_path):
    options = {"task": "tabular-classification", "dataset": "signs", "license": "mit", "tags": ["tiny"]}
    folder = save_pretrained(fitted, tmp_path / "signs-net", config=Size(), text="Tells signs.", **options)
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(stored[name], each) for name, each in fitted.model.state_dict().items())
    assert json.loads((folder / "config.json").read_text()) == {"architectures": ["Net"], "hidden": 4}
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.library_name, card.data.model_name) == ("mit", "stoker", "signs-net")
    assert set(card.data.tags) >= {"stoker", "tiny"}
    found = {
        each.metric_name: (each.metric_value, each.task_type, each.dataset_name) for each in card.data.eval_results
    }
    row = fitted.record.rows[fitted.best.epoch]
    where = ("tabular-classification", "signs")
    assert found == {name: (row[name], *where) for name in ("valid/loss", "valid/accuracy")}
    assert "Tells signs." in card.text and f"epoch {fitted.best.epoch}, the best by valid/loss" in card.text
    again = stoker.load(Net(), folder / "model.safetensors")
    assert torch.equal(again[0].weight, fitted.model[0].weight)


def test_without_a_task_the_card_has_a_table_only(fitted, tmp_path):
    card = ModelCard.load(save_pretrained(fitted, tmp_path / "net", name="Net of signs") / "README.md")
    assert card.data.eval_results is None and "| valid/accuracy | " in card.text and "# Net of signs" in card.text
    with pytest.raises(InvalidArgument, match="the Hub needs both task and dataset"):
        save_pretrained(fitted, tmp_path / "net", task="tabular-classification")
    with pytest.raises(WrongType, match="takes the result of a fit"):
        save_pretrained(fitted.model, tmp_path / "net")


class Api:
    """What `HfApi` is asked for, up to the network."""

    def __init__(self):
        self.calls = []

    def create_repo(self, repo_id, **options):
        self.calls.append(("create", repo_id, options))

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        self.calls.append(("upload", repo_id, sorted(allow_patterns)))
        return "the commit"


def test_pushing_uploads_the_three_files_and_nothing_else(fitted, tmp_path, monkeypatch):
    folder, api = save_pretrained(fitted, tmp_path / "net"), Api()
    (folder / "secret.env").write_text("")
    assert push(folder, "me/net", private=True, api=api) == "the commit"
    assert api.calls[0] == ("create", "me/net", {"private": True, "exist_ok": True})
    assert api.calls[1] == ("upload", "me/net", ["README.md", "config.json", "model.safetensors"])
    (folder / "config.json").unlink()
    with pytest.raises(InvalidArgument, match="has no config.json; write it with save_pretrained first"):
        push(folder, "me/net", api=api)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    save_pretrained(fitted, folder)
    with pytest.raises(MissingExtra, match=r'pip install "stoker\[hub\]"'):
        push(folder, "me/net")
