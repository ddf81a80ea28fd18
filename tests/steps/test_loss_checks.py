"""What stoker notices about a loss function and its batches: hidden sums, wrong shapes, wrong results, odd weights."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import stoker
from stoker import BadData, InvalidArgument, NotDifferentiable, WrongType, callbacks, data, optim

X = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
CLASSES = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


def linear(d_out=1):
    torch.manual_seed(0)
    return nn.Linear(4, d_out)


def fit(loss, source=(X, Y), *, batch_size=32, accumulate=1, model=None, hooks=(), **settings):
    learner = stoker.Learner(
        linear() if model is None else model,
        loss=loss,
        optimizer=optim.SGD(),
        seed=0,
        accumulate=accumulate,
        **{"lr": 1e-3, **settings},
    )
    return learner.fit(
        data.Loader(source, batch_size=batch_size), valid=source, epochs=1, keep="last", callbacks=hooks, show=False
    )


# --- losses that add up over the samples without saying so


class HiddenSum(nn.Module):
    def forward(self, predictions, targets):
        return (predictions - targets).square().sum()


def elbo(predictions, targets):
    """As in torch's example of a variational autoencoder: two sums."""
    return F.mse_loss(predictions, targets, reduction="sum") + 0.1 * predictions.square().sum()


SUMS = {
    "lambda": lambda p, t: F.mse_loss(p, t, reduction="sum"),
    "sum of elements": lambda p, t: ((p - t) ** 2).sum(),
    "sum of means": lambda p, t: (p - t).square().mean(1).sum(),
    "scaled": lambda p, t: 0.3 * torch.sum((p - t) ** 2) / 2,
    "flattened": lambda p, t: F.mse_loss(p.flatten(), t.flatten(), reduction="sum"),
    "negative": lambda p, t: -(-((p - t) ** 2)).sum(),
    "module": HiddenSum(),
    "reduction": nn.MSELoss(reduction="sum"),
    "two sums": elbo,
    "cross entropy": lambda p, t: F.cross_entropy(torch.cat([p, -p], 1), (t[:, 0] > 0).long(), reduction="sum"),
    "binary": lambda p, t: F.binary_cross_entropy_with_logits(p, (t > 0).float(), reduction="sum"),
}
MEANS = {
    "mean": lambda p, t: ((p - t) ** 2).mean(),
    "sum by length": lambda p, t: ((p - t) ** 2).sum() / len(p),
    "sum by elements": lambda p, t: ((p - t) ** 2).sum() * (1 / p.numel()),
    "masked": lambda p, t: ((p - t)[t > 0] ** 2).sum() / int((t > 0).sum()) * (t > 0).sum() / len(t),
    "mean of sums": lambda p, t: ((p - t) ** 2).sum(1).mean(),
    "smooth": lambda p, t: F.smooth_l1_loss(p, t),
    "with a penalty": lambda p, t: F.mse_loss(p, t) + 1e-3 * PENALTY.square().sum(),
    "partial": partial(F.huber_loss, delta=0.5),
}
PENALTY = torch.ones(32, 2)  # with as many rows as a batch


@pytest.mark.parametrize("loss", [*SUMS.values(), *MEANS.values()], ids=[*SUMS, *MEANS])
def test_the_loss_of_an_epoch_does_not_depend_on_the_batch_size(loss):
    expected = loss(linear()(X), Y).item() / (100 if loss in SUMS.values() else 1)
    for batch_size in (100, 32, 7):
        found = fit(loss, batch_size=batch_size, lr=0.0)
        assert found.history["train/loss"] == [pytest.approx(expected, rel=1e-5)]
        assert found.history["valid/loss"] == [pytest.approx(expected, rel=1e-5)]
        assert found.evaluate((X, Y), batch_size=9)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "loss", [SUMS["lambda"], SUMS["module"], MEANS["sum by length"]], ids=["sum", "module", "mean"]
)
def test_a_window_has_the_gradient_of_the_large_batch(loss):
    whole, parts = fit(loss, batch_size=100).model, fit(loss, batch_size=32, accumulate=9).model
    torch.testing.assert_close(parts.weight, whole.weight, rtol=1e-5, atol=1e-6)


def test_the_loss_function_is_called_once_for_each_batch():
    calls = []

    def loss(predictions, targets):
        calls.append(len(predictions))
        return F.mse_loss(predictions, targets)

    fit(loss, batch_size=40)
    whole = [count for count in calls if count >= 20]  # others are trials with a few rows
    assert whole == [32, 40, 40, 20, 32, 32, 32]  # the first is tried before the training; the last has 4 samples


# --- means over tokens and class weights, in functions and modules of the user

WORDS = torch.randn(20, 5, 4, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([1, 5, 2, 1, 1, 4, 5, 5, 1, 3] * 2)[:, None]
NEXT = WORDS.argmax(-1).masked_fill(torch.arange(5) >= LENGTHS, -100)
BALANCE = torch.tensor([1.0, 3.0, 9.0, 27.0])


class Penalised(nn.Module):
    """A cross-entropy with a learned weight, and a penalty of learned parameters."""

    def __init__(self):
        super().__init__()
        self.log_scale, self.extra = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(3, 3))

    def forward(self, predictions, targets):
        loss = F.cross_entropy(predictions.flatten(0, 1), targets.flatten())
        return loss * (-self.log_scale).exp() + self.log_scale / 2 + 1e-2 * self.extra.square().sum()


OTHER_MEANS = {
    "tokens": lambda p, t: F.cross_entropy(p.transpose(1, 2), t),
    "tokens that are selected": lambda p, t: F.cross_entropy(p[t != -100], t[t != -100]),
    "smooth": lambda p, t: F.cross_entropy(p.transpose(1, 2), t, label_smoothing=0.1),
    "class weights": lambda p, t: F.cross_entropy(p.transpose(1, 2), t, weight=BALANCE),
    "both": lambda p, t: F.cross_entropy(p.flatten(0, 1), t.flatten(), weight=BALANCE, label_smoothing=0.1),
    "next token": lambda p, t: F.cross_entropy(p[:, :-1].flatten(0, 1), t[:, 1:].flatten()),
    "learned weight": Penalised(),
}


@pytest.mark.parametrize("kind", ["loss function", "step"])
@pytest.mark.parametrize("loss", OTHER_MEANS.values(), ids=[*OTHER_MEANS])
def test_a_loss_of_the_user_counts_by_the_targets_or_class_weights_that_it_divides_by(loss, kind, tmp_path):
    def make():
        learner = partial(stoker.Learner, linear(4), optimizer=optim.SGD(), seed=0, accumulate=9)
        if kind == "step":
            return learner(step=lambda model, batch: loss(model(batch[0]), batch[1]), lr=1.0)
        return learner(loss=loss, lr={"loss.*": 0.0, "*": 1.0} if isinstance(loss, nn.Module) else 1.0)

    model = linear(4)
    expected = loss(model(WORDS), NEXT)
    gradient = torch.autograd.grad(expected, model.weight)[0]
    rows, sizes = (WORDS, NEXT), {"epochs": 1, "keep": "last", "show": False, "run": tmp_path / "run"}
    fitted = make().fit(data.Loader(rows, batch_size=3), **sizes)
    assert fitted.history["train/loss"] == [pytest.approx(expected.item(), rel=1e-5)]
    torch.testing.assert_close(fitted.model.weight, model.weight - gradient, rtol=1e-5, atol=1e-6)
    after = loss(fitted.model(WORDS), NEXT).item()
    for found in (fitted, stoker.Fitted.load(tmp_path / "run", make())):
        assert found.evaluate(rows, batch_size=3)["loss"] == pytest.approx(after, rel=1e-5)
    is_clear = kind == "loss function" or not isinstance(loss, Penalised)  # a step's penalty may be of the data
    assert not (is_clear and fitted.record.events_of("warning"))


def test_a_loss_function_whose_divisor_depends_on_values_is_warned_about_once():
    def masked(predictions, targets):
        errors = (predictions - targets).square() * (targets > 0)
        return errors.sum() / (targets > 0).sum()

    texts = [event.text for event in fit(masked).record.events_of("warning")]
    assert len(texts) == 1 and texts[0].startswith("it is not clear what the loss of masked is a mean over")


# --- results that are no loss


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda p, t: F.mse_loss(p, t).item(), r"<lambda> returned float; expected one tensor: leave out \.item\(\)"),
        (lambda p, t: (F.mse_loss(p, t), 0.5), "returned tuple; expected one tensor: return the loss alone"),
        (lambda p, t: {"loss": F.mse_loss(p, t)}, "returned dict; .* a train_step of the model can return more"),
        (lambda p, t: None, "returned NoneType; expected one tensor"),
    ],
    ids=["float", "tuple", "dict", "None"],
)
def test_errors_for_what_a_loss_function_returns(loss, text):
    with pytest.raises(WrongType, match=text):
        fit(loss)


def test_an_error_of_the_loss_function_names_the_shapes():
    with pytest.raises(ValueError, match="Target size") as failed:
        fit(nn.BCEWithLogitsLoss(), (X, Y[:, 0]))
    assert failed.value.__notes__[0] == (
        "BCEWithLogitsLoss was called with predictions of shape [32, 1] and torch.float32 and targets of shape [32] "
        "and torch.float32"
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [lambda p, t: ((p - t) ** 2).mean(), nn.MSELoss(), F.l1_loss, nn.HuberLoss()])
def test_predictions_in_a_column_and_targets_in_a_row_are_not_compared_all_with_all(loss):
    text = (
        r"predictions have the shape \[32, 1\] and targets \[32\], and .* compares every prediction with every target"
    )
    with pytest.raises(InvalidArgument, match=text + r".*targets\.unsqueeze\(1\) .* or predictions\.squeeze\(1\)"):
        fit(loss, (X, Y[:, 0]))
    row = nn.Sequential(linear(), nn.Flatten(0))
    with pytest.raises(InvalidArgument, match=r"predictions have the shape \[32\] and targets \[32, 1\]"):
        fit(loss, (X, Y), model=row)


def test_a_loss_that_reshapes_or_compares_pairs_on_purpose_is_accepted():
    squeezed = fit(lambda p, t: F.mse_loss(p.squeeze(1), t), (X, Y[:, 0]))
    assert squeezed.history["train/loss"] == fit(nn.MSELoss()).history["train/loss"]
    fit(lambda p, t: ((p - p.T) - (t - t.T)).square().mean())  # a ranking loss
    fit(lambda p, t: ((p[:, None] - p) ** 2).mean(), (X, Y[:, 0]), model=nn.Sequential(linear(), nn.Flatten(0)))


# --- weights


def test_mixed_samples_count_by_their_class_weights_in_windows_and_means():
    """A window of micro-batches is the large batch, with class weights and MixUp as without."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0]))
    order = CLASSES.argsort()  # so that micro-batches differ in their weight
    source = X[order], CLASSES[order]
    share = torch.linspace(0.5, 1.0, 100)

    def mix(ctx):
        own = ctx.batch[1]
        rows = slice(0, 100) if len(own) == 100 else slice(25 * (ctx.batch_number - 1), 25 * ctx.batch_number)
        ctx.loss_mix = (2 - own, share[rows])

    found = [
        fit(
            loss,
            source,
            batch_size=size,
            accumulate=100 // size,
            model=linear(3),
            hooks=[callbacks.on(train_batch_begin=mix)],
        )
        for size in (100, 25)
    ]
    torch.testing.assert_close(found[0].model.weight, found[1].model.weight, rtol=1e-5, atol=1e-6)
    assert found[0].history["train/loss"] == pytest.approx(found[1].history["train/loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "text"),
    [([1.0, -1.0], r"add up to 0 \(they are between -1 and 1\)"), ([1.0, -2.0], "add up to -16 .*at least 0")],
    ids=["cancel", "negative"],
)
def test_sample_weights_that_leave_nothing_to_divide_by_are_an_error(weights, text):
    with pytest.raises(InvalidArgument, match=text):
        fit(nn.MSELoss(), {"input": X, "y": Y, "weight": torch.tensor(weights).repeat(50)}, batch_size=100)


def test_some_samples_of_weight_0_or_below_are_fine():
    weight = torch.tensor([1.0, 0.0, -0.2, 2.0]).repeat(25)
    weight[:32] = 0
    model = linear()
    found = fit(nn.MSELoss(), {"input": X, "y": Y, "weight": weight}, lr=0.0, model=model)
    expected = (weight * (model(X) - Y).square()[:, 0]).sum() / weight.sum()
    assert found.history["train/loss"] == [pytest.approx(expected.item(), rel=1e-5)]


def test_an_epoch_in_which_nothing_counts_is_an_error():
    text = "epoch 1 has trained nothing: every batch has the weight 0 .*, or train_step yields no objective"
    with pytest.raises(BadData, match=text):
        fit(nn.MSELoss(), {"input": X, "y": Y, "weight": torch.zeros(100)})
    with pytest.raises(BadData, match=text):
        fit(nn.CrossEntropyLoss(ignore_index=0), (X, torch.zeros(100, dtype=torch.long)), model=linear(3))

    class YieldsNothing(nn.Linear):
        def train_step(self, batch):
            if len(batch) > 2:
                yield stoker.Objective("", self(batch[0]).mean())

    with pytest.raises(BadData, match=text):
        fit(None, model=YieldsNothing(4, 1))


# --- models whose gradients would be missing


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.use_reentrant = nn.Linear(4, 4), nn.Linear(4, 1), use_reentrant

    def forward(self, x):
        return self.last(checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=self.use_reentrant))


def test_reentrant_checkpointing_is_an_error_that_names_the_other_kind():
    text = r"reentrant activation checkpointing.*use_reentrant=False"
    with pytest.raises(NotDifferentiable, match=text):
        fit(nn.MSELoss(), model=Checkpointed(use_reentrant=True))
    with pytest.raises(NotDifferentiable, match=text):
        model = Checkpointed(use_reentrant=True)
        stoker.backward(F.mse_loss(model(X), Y), model)
    model = Checkpointed(use_reentrant=False)
    assert len(stoker.backward(F.mse_loss(model(X), Y), model)) == 4


def test_error_for_a_lazy_module():
    text = r"0\.weight of Sequential has no shape yet \(a lazy module\): run one batch through the model before the fit"
    with pytest.raises(InvalidArgument, match=text):
        fit(nn.MSELoss(), model=nn.Sequential(nn.LazyLinear(1)))


# --- batches with time in the first dimension


def time_first(samples):
    """[time, samples, features] and [samples], or [time, samples] if targets have a length."""
    x, y = zip(*samples, strict=True)
    return torch.stack(x, 1), torch.stack(y, y[0].dim())


class BareLoss(nn.Linear):
    """Returns its loss alone, or yields it."""

    yields = False

    def forward(self, x):
        return super().forward(x).squeeze(-1)

    def train_step(self, batch):
        loss = F.mse_loss(self(batch[0]).mean(0), batch[1])
        return self.steps(loss) if self.yields else loss

    def steps(self, loss):
        yield stoker.Objective("weight", loss)


class Yielding(BareLoss):
    yields = True


@pytest.mark.parametrize("kind", ["DataLoader", "Loader"])
@pytest.mark.parametrize("model", [BareLoss, Yielding])
def test_a_bare_loss_of_a_time_first_batch_is_weighed_by_its_samples(model, kind):
    sequences = list(zip(torch.randn(20, 7, 4), torch.randn(20), strict=True))

    def loader():
        if kind == "Loader":
            return data.Loader(sequences, batch_size=8, collate_fn=time_first)
        return torch.utils.data.DataLoader(sequences, batch_size=8, collate_fn=time_first)

    torch.manual_seed(0)
    made = model(4, 1)
    learner = stoker.Learner(made, optimizer=optim.SGD(), lr=0.0, seed=0)
    found = learner.fit(loader(), valid=loader(), epochs=1, show=False)
    x, y = time_first(sequences)
    expected = F.mse_loss(made(x).mean(0), y).item()
    for name in found.history.columns:
        if "/" in name:
            assert found.history[name] == [pytest.approx(expected, rel=1e-5)], name
    assert list(found.evaluate(loader()).values()) == [pytest.approx(expected, rel=1e-5)]


def test_time_first_targets_of_a_loss_function_count_by_samples():
    sequences = list(zip(torch.randn(20, 7, 4), torch.randn(20, 7), strict=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(1))
    loader = data.Loader(sequences, batch_size=8, collate_fn=time_first)
    found = stoker.Learner(model, loss=nn.MSELoss(), lr=0.0, seed=0).fit(loader, epochs=1, show=False)
    x, y = time_first(sequences)
    assert found.history["train/loss"] == [pytest.approx(F.mse_loss(model(x), y).item(), rel=1e-5)]


class Reducing(nn.Linear):
    """A step that returns its loss alone."""

    reduction, divisor = "mean", None

    def train_step(self, batch):
        loss = F.mse_loss(self(batch[0]), batch[1], reduction=self.reduction)
        return loss if self.divisor is None else loss / self.divisor


def test_a_step_that_returns_a_sum_is_warned_about():
    is_sum = "train_step returned a sum over the batch, which is taken for a mean"
    is_part = "of 32 samples it is a mean over 32 elements, of 4 samples over 32"  # the last batch is smaller
    for reduction, divisor, expected in (("sum", None, [is_sum]), ("mean", None, []), ("sum", 32, [is_part])):
        model = Reducing(4, 1)
        model.reduction, model.divisor = reduction, divisor
        texts = [event.text for event in fit(None, model=model).record.events_of("warning")]
        assert len(texts) == len(expected)
        assert all(each in text for each, text in zip(expected, texts, strict=True))
