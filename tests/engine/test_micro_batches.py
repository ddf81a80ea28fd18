"""Micro-batches give the updates of the whole batch, and "auto" continues after memory has run out."""

import copy
import math
from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Callback, Checkpoint, callbacks, data, metrics, optim
from stoker.engine import Batch, split_batch
from stoker.errors import BadData, InvalidArgument
from tests.device import limited_memory, size
from tests.hooks import Crash, crash_at

SAMPLES, SIZE = 53, 16  # the last batch has five samples


def samples(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=dtype)
    return x, torch.randint(0, 4, (SAMPLES,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Limited(nn.Module):
    """Runs out of memory, as a GPU does, if it gets more samples than fit; counts its calls."""

    def __init__(self, most, *middle):
        super().__init__()
        self.most, self.sizes = most, []
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 4)).double()

    def forward(self, x):
        scores = self.body(x)
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.sizes.append(len(x))
        return scores


class OwnLoss(nn.Module):
    """Computes its own loss, a mean over the labels that are not -100, as language models do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 5).double()

    def forward(self, inputs, labels):
        logits = self.body(inputs)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    @staticmethod
    def samples():
        batch = Tokens.samples()
        return {"inputs": batch["x"], "labels": batch["y"].masked_fill(~batch["mask"], -100)}


class Tokens(nn.Module):
    """The loss is a mean over the unmasked tokens; some samples have none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 5).double()

    def train_step(self, batch):
        logits, y, mask = self.body(batch["x"]), batch["y"], batch["mask"]
        loss = F.cross_entropy(logits[mask], y[mask])
        return stoker.SequenceOutput(loss, logits=logits, targets=y, mask=mask)

    @staticmethod
    def samples():
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(SAMPLES, 7, 3, generator=generator, dtype=torch.float64)
        kept = torch.randint(0, 8, (SAMPLES,), generator=generator)
        kept[4:9] = 0
        mask = torch.arange(7) < kept[:, None]
        return {"x": x, "y": torch.randint(0, 5, (SAMPLES, 7), generator=generator), "mask": mask}


def fit(model=None, train=None, *, fit_callbacks=(), settings=None, **arguments):
    given = {"loss": F.cross_entropy, "optimizer": optim.AdamW(), "lr": 1e-2, "seed": 3, **(settings or {})}
    learner = stoker.Learner(network() if model is None else model, **given)
    arguments = {"batch_size": SIZE, "epochs": 2, "show": False, **arguments}
    return learner.fit(samples() if train is None else train, callbacks=list(fit_callbacks), **arguments)


def results(fitted):
    columns = fitted.history.to_dict()
    history = {name: values for name, values in columns.items() if "/" in name}
    weights = {name: each.detach() for name, each in fitted.model.state_dict().items()}
    return {**weights, **{name: torch.tensor(values) for name, values in history.items()}, "updates": fitted.updates}


def assert_close(found, expected):
    torch.testing.assert_close(results(found), results(expected), rtol=1e-9, atol=1e-12)


def limits_in(fitted):
    """What the record says about the limits that were found."""
    notes = [event.text for event in fitted.record.events_of("note")]
    return [int(note.split("micro_batch is ")[1].split()[0]) for note in notes if "micro_batch is" in note]


def weighted():
    x, y = samples()
    return {"input": x, "target": y, "weight": torch.linspace(0.0, 2.0, SAMPLES, dtype=torch.float64)}


CASES = {
    "plain": {"settings": {"metrics": [metrics.Accuracy(), metrics.AUROC(name="area"), metrics.GradientNorm()]}},
    "a sum": {"settings": {"loss": nn.CrossEntropyLoss(reduction="sum"), "lr": 1e-3}},
    "accumulated, clipped, averaged": {"settings": {"accumulate": 3, "clip_norm": 0.05, "ema": 0.8}},
    "validated": {"valid": 0.2, "validate_every": 2},
    "sample weights": {"train": weighted},
    "mixed up": {"fit_callbacks": lambda: [callbacks.MixUp(0.4)]},
    "wrapped optimizer": {"settings": {"optimizer": optim.wrap(torch.optim.SGD)}},
    "masked tokens": {"model": Tokens, "train": Tokens.samples, "settings": {"loss": None}},
    "the model's own loss": {"model": OwnLoss, "train": OwnLoss.samples, "settings": {"loss": None}},
    "a DataLoader": {"train": lambda: DataLoader(TensorDataset(*samples()), batch_size=SIZE), "batch_size": None},
}


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_give_the_updates_and_the_numbers_of_the_whole_batch(name):
    def run(**more):
        case = {key: value() if callable(value) else value for key, value in CASES[name].items()}
        return fit(**case, **more)

    assert_close(run(micro_batch=5), run())


def test_gradients_are_those_of_a_plain_loop_over_whole_batches():
    expected, (x, y) = network(), samples()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for rows in torch.arange(SAMPLES).split(SIZE):
        optimizer.zero_grad()
        F.cross_entropy(expected(x[rows]), y[rows]).backward()
        optimizer.step()
    train = data.Loader((x, y), batch_size=SIZE)
    fitted = fit(train=train, batch_size=None, settings={"optimizer": optim.SGD(), "lr": 0.1}, micro_batch=3, epochs=1)
    torch.testing.assert_close(fitted.model.state_dict(), expected.state_dict(), rtol=1e-9, atol=1e-12)


def test_a_micro_batch_has_at_most_so_many_samples_and_sizes_are_even():
    model = Limited(100)
    fit(model, micro_batch=6, epochs=1)
    assert model.sizes == [5, 5, 6] * 3 + [5]
    lines = stoker.Learner(network(), loss=F.cross_entropy).explain(samples(), epochs=1, micro_batch=6)
    assert "micro-batches of at most 6 samples" in lines


class Counts(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_begin(self, ctx):
        self.seen.append(("begin", len(ctx.batch[0])))

    def on_train_batch_after_backward(self, ctx):
        self.seen.append(("backward", len(ctx.batch[0])))

    def on_train_batch_end(self, ctx):
        self.seen.append(("end", len(ctx.batch[0])))

    def on_update(self, ctx):
        self.seen.append(("update", ctx.update))


def test_hooks_inside_of_a_step_are_called_for_each_micro_batch_and_others_once():
    counts = Counts()
    fit(micro_batch=8, updates=1, epochs=None, fit_callbacks=[counts])
    assert counts.seen == [("begin", 16), ("backward", 8), ("backward", 8), ("update", 1), ("end", 8)]


# --- "auto"


@pytest.mark.parametrize("most", [16, 9, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_auto_halves_after_memory_has_run_out_and_gives_the_same_result(most, accumulate):
    settings = {"accumulate": accumulate, "metrics": [metrics.Accuracy()], "ema": 0.8}
    model = Limited(most)
    found = fit(model, micro_batch="auto", settings=settings)
    assert_close(found, fit(Limited(100), settings=settings))
    assert max(model.sizes) == {16: 16, 9: 8, 3: 2}[most]
    assert sum(model.sizes) == 2 * SAMPLES  # no sample is lost, and none counts twice
    assert limits_in(found) == {16: [], 9: [8], 3: [8, 4, 2]}[most]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_failed_attempt_leaves_no_trace_in_buffers_random_numbers_and_attributes(device):
    """The same bits as if the first micro-batches had had the right size from the start."""
    layers = nn.BatchNorm1d(8).double(), nn.Dropout(0.3)
    found, expected = (
        fit(Limited(8, *copy.deepcopy(layers)), micro_batch=each, settings={"device": device}) for each in ("auto", 8)
    )
    for name, value in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    assert found.model.sizes == expected.model.sizes


class GrowingAtOnce(Limited):
    """From the fourth call on less memory is available, in the middle of a batch."""

    def forward(self, x):
        self.most = 100 if len(self.sizes) < 4 else 2
        return super().forward(x)


def test_memory_may_run_out_in_the_middle_of_a_batch():
    model = GrowingAtOnce(100)
    found = fit(model, micro_batch="auto", epochs=1, batch_size=40)
    assert_close(found, fit(Limited(100), epochs=1, batch_size=40))
    model = GrowingAtOnce(100)
    assert_close(fit(model, micro_batch="auto", epochs=3, batch_size=40), fit(Limited(100), epochs=3, batch_size=40))
    assert model.sizes[:4] == [40, 13, 40, 13]
    assert max(model.sizes[4:]) == 2


def test_a_resumed_run_starts_with_the_limit_that_was_found(tmp_path):
    def run(path, model, **more):
        middle = nn.BatchNorm1d(8).double(), nn.Dropout(0.3)
        every = Checkpoint(every=3, background=False)
        return fit(model(4, *middle), run=path, micro_batch="auto", epochs=3, checkpoint=every, **more)

    whole = run(tmp_path / "whole", Limited)
    with pytest.raises(Crash):
        run(tmp_path / "cut", Limited, fit_callbacks=[crash_at(update=7)])
    resumed = run(tmp_path / "cut", Limited, resume=True)
    assert max(resumed.model.sizes) == 4
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert limits_in(resumed) == limits_in(whole) == [8, 4]  # of the first process: the second one did not try again


def test_a_single_sample_that_does_not_fit_is_an_error():
    with pytest.raises(torch.OutOfMemoryError, match="not even one sample at a time fits into memory: CUDA out of"):
        fit(Limited(0), micro_batch="auto")


def test_an_optimizer_that_runs_out_of_memory_is_not_run_twice():
    class Full(torch.optim.SGD):
        def step(self, closure=None):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="^CUDA out of memory"):
        fit(micro_batch="auto", settings={"optimizer": optim.wrap(Full)})


def test_without_micro_batch_the_error_says_what_to_do():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(Limited(8))
    assert "fit(micro_batch='auto')" in caught.value.__notes__[0]


def test_a_library_that_can_not_allocate_its_memory_is_out_of_memory_too():
    class Blas(Limited):
        def forward(self, x):
            try:
                return super().forward(x)
            except torch.OutOfMemoryError:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate") from None

    assert limits_in(fit(Blas(9), micro_batch="auto")) == [8]
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        fit(Blas(9), micro_batch=16)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torchscript_inside_of_a_model_is_undone_too():
    class Scripted(Limited):
        def __init__(self, most):
            super().__init__(most)
            self.body = torch.jit.script(nn.Sequential(self.body, nn.BatchNorm1d(4).double()))

    found, expected = (fit(Scripted(9), micro_batch=each, valid=samples()) for each in ("auto", 8))
    for name, value in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name


class LimitedInEval(Limited):
    """Less memory is available in validations."""

    def forward(self, x):
        scores = self.body(x)
        if not self.training and len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.sizes.append(len(x))
        return scores


@pytest.mark.parametrize("micro_batch", ["auto", 3])
def test_validations_are_split_too(micro_batch):
    settings = {"metrics": [metrics.Accuracy(), metrics.AUROC(name="area")]}
    arguments = {"settings": settings, "valid": {"a": samples(), "b": tuple(each[:9] for each in samples())}}
    found = fit(LimitedInEval(5), micro_batch=micro_batch, **arguments)
    assert_close(found, fit(Limited(100), **arguments))
    assert limits_in(found) == ([8, 4] if micro_batch == "auto" else [])
    with pytest.raises(torch.OutOfMemoryError):
        fit(LimitedInEval(5), micro_batch=6, **arguments)


class BlasInEval(Limited):
    """Counts all attempts, and fails in validations as cuBLAS does."""

    def forward(self, x):
        self.sizes.append(len(x))
        if not self.training and len(x) > self.most:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
        return self.body(x)


def test_the_batch_before_the_first_update_may_be_too_large_and_has_the_size_of_a_micro_batch():
    assert limits_in(fit(BlasInEval(9), valid=samples(), micro_batch="auto")) == [8]
    model = BlasInEval(3)
    fit(model, valid=samples(), micro_batch=3)
    assert max(model.sizes) == 3


@pytest.mark.parametrize("micro_batch", ["auto", 5])
def test_padding_is_split_too(micro_batch):
    """It repeats a whole batch, and changes no update."""

    def train():
        return data.Loader(tuple(each[:32] for each in samples()), batch_size=16)

    model = Limited(9)
    found = fit(model, train().padded(5), valid=train().padded(4), batch_size=None, micro_batch=micro_batch)
    assert max(model.sizes) <= 9
    arguments = {"valid": train().padded(4), "batch_size": None}
    expected = fit(Limited(100), train().padded(5), **arguments)
    assert_close(found, expected)
    assert list(train().padded(5).at(epoch=0, batch=1).sizes()) == [16] * 4


def test_a_batch_that_can_not_be_split_further_is_an_error():
    """The parts say that they are no smaller."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(torch.OutOfMemoryError, match="can't be split further"):
        patch.setattr(Batch, "samples", 16)
        fit(Limited(4), micro_batch="auto")


# --- what can be split


class Pair(NamedTuple):
    x: torch.Tensor
    text: list[str]


@dataclass
class Record:
    x: torch.Tensor
    name: str = "a"


def split(value, count=2, *, has_columns=False, **batch):
    return [part.value for part in split_batch(Batch(value, **batch), count, has_columns=has_columns)]


def test_structures_are_split_by_sample():
    x = torch.arange(5)
    assert [part.tolist() for part in split(x)] == [[0, 1], [2, 3, 4]]
    first, second = split(Pair(x, list("abcde")))
    assert isinstance(first, Pair)
    assert (first.text, second.text) == (["a", "b"], ["c", "d", "e"])
    first, second = split({"a": {"x": x}, "flag": True, "none": None, "ids": [1, 2, 3, 4, 5]})
    assert second["a"]["x"].tolist() == [2, 3, 4]
    assert (second["flag"], second["none"], second["ids"]) == (True, None, [3, 4, 5])
    first, second = split(UserDict(x=x))
    assert isinstance(first, UserDict)
    assert second["x"].tolist() == [2, 3, 4]
    assert split(Record(x))[1].x.tolist() == [2, 3, 4]
    assert split((x, x.numpy()))[1][1].tolist() == [2, 3, 4]
    images, targets = [torch.zeros(3, 4, n) for n in (1, 2, 3, 4, 5)], [{"boxes": torch.zeros(n, 4)} for n in range(5)]
    first, second = split({"id": x, "images": images, "targets": targets})
    assert [image.shape[2] for image in second["images"]] == [3, 4, 5]
    assert [target["boxes"].shape[0] for target in second["targets"]] == [2, 3, 4]


@pytest.mark.parametrize("make", [tuple, list])
def test_targets_show_that_three_rgb_images_are_three_samples(make):
    images = make(torch.full((3, 4, 5), float(n)) for n in range(3))
    targets = make({"boxes": torch.zeros(n, 4), "labels": torch.zeros(n)} for n in (1, 3, 2))
    for value in ((images, targets), [images, targets], (images, make([4, 5, 6]))):
        first, second = split(value, size=3)
        assert [image.mean().item() for image in first[0]] == [0]
        assert [image.mean().item() for image in second[0]] == [1, 2]
        assert len(second[1]) == 2
    first, _ = split([images[:2], targets[:2]], size=2)
    assert [len(each) for each in first] == [1, 1]
    first, second = split({"images": images, "targets": targets}, size=3)
    assert len(second["images"]) == len(second["targets"]) == 2


def test_a_list_of_three_rgb_images_may_be_samples_or_columns():
    images = [torch.zeros(3, 4, 5) for _ in range(3)]
    for value in (images, [{"image": image} for image in images], {"views": images, "names": ["a", "b", "c"]}):
        with pytest.raises(BadData, match="3 elements of 3 rows each: it is not clear whether they are columns or sam"):
            split(value, size=3)
    assert [part.shape[0] for part in split(images, has_columns=True)[1]] == [2, 2, 2]
    assert [part.shape[0] for part in split(tuple(images))[1]] == [2, 2, 2]
    # With a loss function, a list is one of inputs and targets.
    train = DataLoader([(torch.zeros(6), torch.zeros(1))] * 2, batch_size=2)
    fit(nn.Linear(6, 1), train, batch_size=None, epochs=1, micro_batch=1, settings={"loss": F.mse_loss})


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"x": torch.zeros(4, 2), "scale": 0.5}, r"batch\['scale'\] is a value of type float"),
        ((torch.zeros(4, 2), torch.tensor(1.0)), r"batch\[1\] is of shape \[\]"),
        ({"x": torch.zeros(4, 2), "table": torch.zeros(7, 4)}, r"batch\['table'\] is of shape \[7, 4\]"),
        ((torch.zeros(4, 2), object()), "a value of type object"),
    ],
)
def test_what_can_not_be_split_is_refused(value, what):
    with pytest.raises(BadData, match=what):
        split(value)
    with pytest.raises(BadData, match="columns or samples"):
        split(((torch.zeros(2, 1), torch.zeros(2, 1)), torch.zeros(2)))


def test_yielded_objectives_are_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 5).double(), nn.Linear(5, 4).double()

        def train_step(self, batch):
            x, y = batch
            yield stoker.Objective("body", self.body(x).square().mean())
            yield stoker.Objective("head", F.cross_entropy(self.head(self.body(x)), y))

    with pytest.raises(InvalidArgument, match="yields objectives"):
        fit(Two(), settings={"loss": None}, micro_batch=8)
    assert fit(Two(), settings={"loss": None}, micro_batch="auto").updates == 2 * math.ceil(SAMPLES / SIZE)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "all"])
def test_other_values_are_refused(wrong):
    with pytest.raises(InvalidArgument, match='micro_batch is a number of samples, at least 1, or "auto"'):
        fit(micro_batch=wrong)


# --- GPUs


@pytest.mark.cuda
@pytest.mark.parametrize("captured", [True, False])
def test_auto_finds_what_fits_on_a_gpu(captured):
    """The activations of the whole batch need more memory than the limit allows."""
    width, batch, limit = size((1024, 16384, 900), simulated=(256, 4096, 56))  # the limit in MiB

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(16)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return x[:, :4]

    class Listens(Callback):
        def on_train_batch_after_loss(self, ctx):
            """Keeps the step eager."""

    x, y = torch.randn(3 * batch, width), torch.randint(0, 4, (3 * batch,))

    def run(**more):
        learner = stoker.Learner(Wide(), loss=F.cross_entropy, optimizer=optim.SGD(), lr=0.1, seed=0, device="cuda")
        train = data.Loader((x, y), batch_size=batch)
        return learner.fit(train, epochs=3, callbacks=[] if captured else [Listens()], show=False, **more)

    expected = run()
    torch.cuda.empty_cache()
    with limited_memory(limit * 2**20):
        found = run(micro_batch="auto")
    assert limits_in(found)
    for name, value in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


class Scarce(torch.utils.data.Dataset):
    """Samples; memory runs out when one of these is read for the first time, as while a step takes all of it."""

    def __init__(self, *scarce):
        self.x, self.y = samples()
        self.scarce = set(scarce)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index in self.scarce:
            self.scarce.remove(index)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return self.x[index], self.y[index]


@pytest.mark.cuda
def test_auto_fetches_a_batch_again_that_memory_ran_out_for():
    def run(source, **more):
        learner = stoker.Learner(network(), loss=F.cross_entropy, optimizer=optim.Adam(), seed=0, device="cuda")
        return learner.fit(data.Loader(source, batch_size=SIZE), epochs=2, show=False, **more)

    expected, source = run(Scarce(), micro_batch="auto"), Scarce(0, 17, 50)
    found = run(source, micro_batch="auto")
    assert not source.scarce
    for name, value in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    with pytest.raises(torch.OutOfMemoryError):
        run(Scarce(17))
