"""Data that do not match the model are found before the first update, named by set and batch, without a trace."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import stoker
from stoker import BadData, NotDifferentiable, WrongType, callbacks, data, metrics
from tests.learner.fits import Net, copy_state, learner, same, samples

X, Y = samples(32)
WIDTH = "the inputs have another width than the model expects"
DTYPE = r"inputs and weights have different types: convert the data \(x.float\(\)\)"


@pytest.mark.parametrize("where", ["train", "valid", "late"])
@pytest.mark.parametrize(
    ("bad", "error", "note"),
    [
        ((X[:, :5], Y), RuntimeError, rf"\(float32 \[16, 5\], int64 \[16\] from 0 to 3\): {WIDTH}"),
        ((X.double(), Y), RuntimeError, rf"\(float64 \[16, 6\], int64 \[16\] from 0 to 3\): {DTYPE}"),
        ((X, Y + 3), IndexError, r"int64 \[16\] from 3 to 6\): the targets are classes from 0 to one less than"),
        ((X, Y.float()), RuntimeError, r"float32 \[16\]\): classes are whole numbers: y.long\(\)"),
        (TensorDataset(X), BadData, r"float32 \[16, 6\]"),
    ],
    ids=["width", "dtype", "class", "float classes", "no target"],
)
def test_a_wrong_set_is_named_before_anything_happens(tmp_path, where, bad, error, note):
    model = Net()
    before = copy_state(model)
    sets = {"train": (X, Y), "valid": (X, Y), "late": (X, Y), where: bad}
    with pytest.raises(error) as caught:
        learner(model).fit(
            sets.pop("train"), valid=sets, epochs=1, batch_size=16, run=tmp_path / "run", callbacks=[], show=False
        )
    text = caught.value.__notes__[-1]
    is_train = where == "train"  # the first step itself
    place = "in epoch 1, batch 1 of 'train', " if is_train else f"in batch 1 of {where!r}, before the first update, "
    assert text.startswith(place) and (tmp_path / "run").exists() == is_train
    parameters = dict(model.named_parameters())
    torch.testing.assert_close(parameters, {name: before[name] for name in parameters}, rtol=0, atol=0)
    with pytest.raises(AssertionError, match=note):
        raise AssertionError(text)


def test_a_metric_that_does_not_fit_a_validation_set_is_found():
    given = learner(metrics=[metrics.MAE(on="valid")])
    with pytest.raises(Exception, match="mae") as caught:
        given.fit((X, Y), valid=(X, Y), epochs=1, show=False)
    assert "in batch 1 of 'valid', before the first update" in caught.value.__notes__[-1]


def test_a_later_batch_is_named_too():
    bad = torch.cat([Y, Y + 3])
    x = torch.cat([X, X])
    given = learner()
    for sets, place in (
        ({"train": data.Loader((x, bad), batch_size=16)}, "in epoch 1, batch 3 of 'train'"),
        (
            {"train": (X, Y), "valid": {"a": (X, Y), "b": data.Loader((x, bad), batch_size=16)}},
            "in epoch 1, batch 3 of 'b'",
        ),
    ):
        with pytest.raises(IndexError, match="out of bounds") as caught:
            given.fit(**sets, epochs=1, show=False)
        assert caught.value.__notes__[-1].startswith(f"{place}, (float32 [16, 6], int64 [16] from 3 to 6): the targets")
    fitted = given.fit((X, Y), epochs=1, show=False)
    for call in (fitted.evaluate, fitted.predict):
        with pytest.raises(RuntimeError) as caught:
            call([(x, y) for x, y in zip([*X[:8], *X[:8, :5]], [*Y[:8], *Y[:8]], strict=True)], batch_size=8)
        assert caught.value.__notes__[-1].startswith("in batch 2, (float32 [8, 5]")


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (lambda p, t: float(F.cross_entropy(p, t)), WrongType, "returned float; expected one tensor: leave out .item"),
        (
            lambda p, t: (F.cross_entropy(p, t), 1),
            WrongType,
            "<lambda>.* returned tuple; .*the loss alone",
        ),
        (lambda p, t: {"loss": F.cross_entropy(p, t)}, WrongType, "<lambda>.* returned dict"),
        (nn.CrossEntropyLoss(reduction="none"), NotDifferentiable, r"must be one number, got shape \[16\]"),
    ],
    ids=["float", "tuple", "dict", "vector"],
)
@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_a_loss_that_is_not_one_number_is_not_blamed_on_a_callback(loss, error, text, hook):
    watch = [callbacks.on(train_batch_after_loss=lambda ctx: None, train_batch_begin=lambda ctx: None)] if hook else []
    with pytest.raises(error, match=text):
        learner(loss=loss).fit((X, Y), epochs=1, batch_size=16, callbacks=watch, show=False)


@pytest.mark.parametrize("targets", [Y > 1, Y])
def test_targets_that_should_be_floats_are_named(targets):
    with pytest.raises(RuntimeError) as caught:
        learner(loss=nn.BCEWithLogitsLoss()).fit(
            (X, F.one_hot(targets.long(), 4).to(targets.dtype)), epochs=1, show=False
        )
    assert "this loss compares floats: y.float()" in caught.value.__notes__[-1]


class Counting(Net):
    """Writes a buffer in every mode, and draws random numbers in every mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x + 0.01 * torch.rand_like(x))


class Drawing(Dataset):
    """Draws from torch's generator, or from its own."""

    def __init__(self, own):
        self.generator = torch.Generator().manual_seed(1) if own else None

    def __len__(self):
        return 32

    def __getitem__(self, number):
        return X[number] + torch.rand(6, generator=self.generator), Y[number]


class Once(IterableDataset):
    """Can be read once."""

    def __init__(self):
        self.samples = iter(list(zip(X, Y, strict=True)))

    def __iter__(self):
        return self.samples


def shuffling():
    generator = torch.Generator().manual_seed(7)
    return DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=generator)


@pytest.mark.parametrize(
    "source",
    [
        lambda: data.Loader((X, Y), batch_size=8, shuffle=1),
        lambda: data.Loader(Drawing(own=False), batch_size=8, shuffle=1),
        lambda: data.Loader(Drawing(own=True), batch_size=8, shuffle=1),
        lambda: data.Loader(Once(), batch_size=8),
        lambda: DataLoader(Drawing(own=False), batch_size=8),
        lambda: DataLoader(Once(), batch_size=8),
        shuffling,
    ],
    ids=["tensors", "drawing", "own generator", "stream", "DataLoader", "DataLoader of a stream", "shuffling"],
)
def test_the_check_leaves_no_trace(source):
    """A hook that looks at every validation batch turns it off: then it can't know what the model will see."""
    look = callbacks.on(valid_batch_begin=lambda ctx: None)
    checked, unchecked = (
        stoker.Learner(Counting, loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy()], seed=3).fit(
            source(), valid=source(), epochs=1, keep="last", callbacks=hooks, show=False
        )
        for hooks in ([], [look])
    )
    assert same(checked.model, unchecked.model)
    assert checked.updates == 4
    for name in ("train/loss", "valid/loss", "valid/accuracy"):
        assert checked.history[name] == unchecked.history[name]


def test_a_batch_that_a_callback_makes_right_is_not_an_error():
    def narrow(ctx):
        ctx.batch = (ctx.batch[0][:, :6], ctx.batch[1])

    wide = torch.cat([X, X], 1), Y
    fitted = learner().fit((X, Y), valid=wide, epochs=1, callbacks=[callbacks.on(valid_batch_begin=narrow)], show=False)
    assert len(fitted.history["valid/loss"]) == 1
