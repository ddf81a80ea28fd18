"""A loss that is a module: its parameters are trained with the model, and its modes and buffers are kept apart."""

import copy

import pytest
import torch
from torch import nn

import stoker
from stoker import Callback, InvalidArgument, callbacks, data, optim
from tests.learner.fits import CopyRun, copy_state, line, result_of, same, texts


class Uncertain(nn.Module):
    """A squared error with a trained variance for each output, dropout, and a buffer that it writes in any mode."""

    counts = False  # also in an attribute, which no checkpoint saves

    def __init__(self):
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))
        self.scale = nn.Parameter(torch.ones(()))
        self.noise = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))
        self.seen = 0

    def forward(self, predictions, targets):
        self.calls += 1
        self.seen += self.counts
        error = self.noise((predictions - targets).square()) * self.scale
        return (error * torch.exp(-self.log_variance) + self.log_variance).mean() + 1e-3 * self.seen


def samples(count=48):
    x, y = line(count)
    noise = torch.randn(count, 1, generator=torch.Generator().manual_seed(2))
    return x, torch.cat([y, y + noise], 1)


def loader():
    return data.Loader(samples(), batch_size=16)


def parts():
    torch.manual_seed(0)
    return nn.Linear(3, 2), Uncertain()


def learner(model, loss, **settings):
    return stoker.Learner(model, loss=loss, **{"optimizer": optim.AdamW(), "lr": 1e-2, "seed": 1, **settings})


def test_it_is_trained_like_a_plain_loop_with_clipping_selectors_and_accumulation():
    (model, loss), (other, other_loss) = parts(), parts()
    learner(
        model,
        loss,
        optimizer={"loss.log*": optim.SGD(momentum=0.9, fused=False), "*": optim.AdamW(fused=False)},
        lr={loss.scale: 0.5, "loss": 0.1, "*": 1e-2},
        clip_norm=0.1,
        accumulate=3,
    ).fit(loader(), epochs=4, show=False)
    torch.manual_seed(1)
    sgd = torch.optim.SGD([other_loss.log_variance], lr=0.1, momentum=0.9)
    adam = torch.optim.AdamW([{"params": other.parameters(), "lr": 1e-2}, {"params": [other_loss.scale], "lr": 0.5}])
    everything = [*other.parameters(), *other_loss.parameters()]
    for _ in range(4):
        for x, y in zip(*(column.split(16) for column in samples()), strict=True):
            (other_loss(other(x), y) / 3).backward()
        nn.utils.clip_grad_norm_(everything, 0.1)
        sgd.step()
        adam.step()
        sgd.zero_grad()
        adam.zero_grad()
    for own, expected in zip([*model.parameters(), *loss.parameters()], everything, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(loss.log_variance, torch.zeros(2)) and loss.scale != 1


def test_frozen_parameters_stay_and_may_be_unfrozen_later():
    model, loss = parts()
    stoker.freeze(loss)
    learner(model, loss).fit(loader(), epochs=2, show=False)
    assert same({"v": loss.log_variance, "s": loss.scale}, {"v": torch.zeros(2), "s": torch.ones(())})
    model, loss = parts()
    seen = []
    watch = callbacks.on(epoch_end=lambda ctx: seen.append(float(loss.scale)))
    late = callbacks.FreezeUntil("loss.scale", epoch=2)
    learner(model, loss).fit(loader(), epochs=2, callbacks=[late, watch], show=False)
    assert seen[0] == 1.0 != seen[1] and not torch.equal(loss.log_variance, torch.zeros(2))


def test_the_ema_averages_it_and_validation_uses_the_average():
    model, loss = parts()
    expected, trained = {}, {}

    class Average(Callback):
        transient = True

        def on_update(self, ctx):
            with ctx.evaluating() as evaluated:
                assert evaluated is model
            for name, parameter in loss.named_parameters():
                start = expected.get(name, torch.zeros(2) if name == "log_variance" else torch.ones(()))
                expected[name] = start.lerp(parameter.detach(), max(0.3, 9 / (9 + ctx.update)))  # it warms up
                trained[name] = parameter.detach().clone()

    fitted = learner(model, loss, ema=0.7).fit(loader(), valid=samples(), epochs=2, callbacks=[Average()], show=False)
    for name, parameter in loss.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])
        assert not torch.equal(parameter, trained[name])
    assert fitted.best.epoch == 2
    assert fitted.evaluate(samples())["loss"] == pytest.approx(fitted.best.value, rel=1e-5)


def test_the_best_parameters_come_back_and_are_loaded(tmp_path):
    model, loss = parts()
    given = learner(model, loss, lr=lambda update: 0.02 if update < 6 else 0.5)
    fitted = given.fit(loader(), valid=samples(), epochs=4, run=tmp_path / "run", show=False)
    assert fitted.best.epoch < 4 and fitted.loss is loss
    kept = copy_state(loss)
    (other, other_loss), (plain, _) = parts(), parts()
    loaded = stoker.Fitted.load(tmp_path / "run", learner(other, other_loss))
    assert same(other, model)
    assert all(torch.equal(other_loss.get_parameter(name), kept[name]) for name in ("log_variance", "scale"))
    assert torch.equal(loaded.predict(samples()[0]), fitted.predict(samples()[0]))
    assert same(stoker.load_for_inference(tmp_path / "run", plain), model), "the model without the loss"


@pytest.mark.parametrize(
    "settings", [{}, {"ema": 0.9}, {"accumulate": 2, "optimizer": optim.SGD(momentum=0.9)}], ids=str
)
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, settings):
    def train(run, *watch):
        return learner(*parts(), **settings).fit(
            loader(),
            valid=samples(),
            epochs=3,
            run=run,
            resume=True,
            checkpoint=stoker.Checkpoint(every=1, background=False),
            callbacks=watch,
            show=False,
        )

    whole = train(tmp_path / "whole", CopyRun(tmp_path / "whole", tmp_path / "left", 2, 2))
    resumed = train(tmp_path / "left")
    assert len(resumed.record.events_of("resume")) == 1
    assert result_of(resumed) == result_of(whole)
    for name, parameter in resumed.loss.named_parameters():
        assert torch.equal(parameter, whole.loss.get_parameter(name))


def test_an_attribute_that_changes_causes_a_warning(tmp_path):
    class Counting(Uncertain):
        counts = True

    fitted = learner(parts()[0], Counting()).fit(loader(), epochs=2, run=tmp_path / "run", show=False)
    (text,) = texts(fitted.record)
    assert text.startswith("Counting ('loss' in the model) changes `seen`, which is not in its state")


def test_every_fit_of_a_model_class_starts_with_the_same_loss():
    loss = Uncertain()
    given = learner(lambda: nn.Linear(3, 2), loss)
    first, second = (given.fit(loader(), epochs=2, show=False) for _ in range(2))
    assert same(first.model, second.model) and same(first.loss, second.loss)
    assert first.loss is not loss and same(loss, Uncertain()) and first.loss.scale != 1


def test_continuing_equals_the_longer_fit():
    (model, loss), (other, other_loss) = parts(), parts()
    learner(model, loss).fit(loader(), valid=samples(), epochs=3, keep="last", show=False)
    short = learner(other, other_loss).fit(loader(), valid=samples(), epochs=1, keep="last", show=False)
    short.continue_(epochs=2, show=False)
    assert same(model, other) and same(loss, other_loss)


def test_parameters_that_the_model_has_are_trained_once():
    class Penalty(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, predictions, targets):
            return nn.functional.mse_loss(predictions, targets) + self.model.weight.square().sum()

    model = nn.Linear(3, 2)
    plan = learner(model, Penalty(model)).fit(loader(), epochs=1, show=False).plan
    assert not any(line.startswith("loss ") for line in plan)
    plan = learner(*parts()).fit(loader(), epochs=1, show=False).plan
    assert "loss       its parameters are trained too, unless they are frozen: loss.log_variance, loss.scale" in plan


def test_a_part_of_the_model_must_not_have_the_same_name():
    model = nn.Sequential()
    model.add_module("loss", nn.Linear(3, 2))
    with pytest.raises(InvalidArgument, match=r"would be called loss.\*, and Sequential has a part with this name"):
        learner(model, Uncertain()).fit(loader(), epochs=1, show=False)


def test_validation_and_evaluation_leave_no_trace_in_the_loss():
    """It is in eval mode there, and what it writes to its buffers even so is undone."""
    modes = []

    class Watched(Uncertain):
        def forward(self, predictions, targets):
            modes.append((torch.is_grad_enabled(), self.training))
            return super().forward(predictions, targets)

    (model, _), (other, _) = parts(), parts()
    loss, other_loss = Watched(), Watched()
    plain = learner(model, loss).fit(loader(), epochs=2, show=False)
    watched = learner(other, other_loss).fit(loader(), valid=samples(), epochs=2, keep="last", show=False)
    before = copy.deepcopy(other_loss.state_dict())
    assert watched.evaluate(samples()) == watched.evaluate(samples())
    assert same(model, other) and same(loss, other_loss) and same(other_loss, before)
    assert plain.history["train/loss"] == watched.history["train/loss"]
    assert set(modes) == {(True, True), (False, False)} and other_loss.training


def test_a_loss_that_is_a_method_of_the_model_is_evaluated_with_it():
    class Own(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.noise = nn.Dropout(0.5)

        def score(self, predictions, targets):
            return nn.functional.mse_loss(self.noise(predictions), targets)

    model = Own()
    fitted = learner(model, model.score, ema=0.5).fit(loader(), valid=samples(), epochs=1, show=False)
    x, y = samples()
    assert fitted.history["valid/loss"][0] == pytest.approx(nn.functional.mse_loss(model(x), y).item(), rel=1e-5)
    assert fitted.evaluate(samples())["loss"] == pytest.approx(fitted.best.value, rel=1e-5)
