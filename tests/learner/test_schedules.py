"""Learning rates in a fit: schedules that are as long as it, torch's schedulers, and schedules that end too early."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import stoker
from stoker import InvalidArgument, callbacks, data, optim, schedule
from stoker.errors import WrongType
from tests.learner.fits import fit, killed_run, learner, line, linear, result_of, same, samples, texts

END = "the learning rate is 0 from update {} of {} on, and the weights do not change any more"


def warnings(lr, *, epochs=10, **arguments):
    """Of a fit with four updates in an epoch."""
    record = linear(lr=lr).fit(line(), epochs=epochs, batch_size=16, show=False, **arguments).record
    return texts(record)


@pytest.mark.parametrize("lr", [schedule.cosine(0.1, updates=8), schedule.linear(0.1, 0.0, updates=8)])
def test_a_schedule_that_reaches_zero_early_is_a_warning(lr):
    first_zero = next(update for update in range(40) if lr(update) == 0)
    (text,) = warnings(lr)
    assert text.startswith(f"{END.format(first_zero + 1, 40)}: give the schedule updates=40, or none, so that it is")
    assert len(warnings(lr, updates=20)) == 1 and warnings(lr, epochs=2) == []


@pytest.mark.parametrize(
    "lr",
    [
        0.0,
        0.1,
        schedule.cosine(0.1, updates=40),
        schedule.cosine(0.1, updates=38),
        schedule.cosine(0.1, updates=8, end=0.01),
        lambda update: 0.1 * (update % 2),
        {"weight": 0.1, "*": 0.0},
    ],
)
def test_other_learning_rates_are_not(lr):
    assert warnings(lr) == []


def test_each_selector_and_a_continued_fit_are_checked():
    lr = {"weight": schedule.cosine(0.1, updates=8), "bias": 0.1}
    assert warnings(lr)[0].startswith("the learning rate of 'weight' is 0 from update 9 of 40 on")
    fitted = linear(lr=schedule.cosine(0.1, updates=8)).fit(line(), epochs=2, batch_size=16, show=False)
    assert texts(fitted.record) == []
    fitted.continue_(epochs=8, show=False)
    assert texts(fitted.record)[0].startswith(END.format(9, 40))


# --- schedules without a length

WARM = schedule.cosine(0.1, warmup=0.25)


def rates_of(lr, *, of=linear, train=None, **arguments):
    """The learning rate of every update of a fit; with 64 samples, an epoch has four."""
    seen = []
    watch = callbacks.on(update=lambda ctx: seen.append(ctx.lr))
    arguments = {"batch_size": 16, "show": False, "callbacks": [watch], **arguments}
    fitted = of(lr=lr).fit(line() if train is None else train, **arguments)
    return seen, fitted


@pytest.mark.parametrize(
    ("limits", "accumulate", "updates"),
    [
        ({"epochs": 5}, 1, 20),
        ({"epochs": 5, "updates": 12}, 1, 12),
        ({"epochs": 2, "updates": 12}, 1, 8),
        ({"updates": 12}, 1, 12),
        ({"epochs": 4, "minutes": 60}, 1, 16),
        ({"epochs": 4}, 3, 8),  # windows of 3 and 1 batches
        ({"epochs": 4, "batch_size": 24}, 1, 12),  # the last batch is shorter
    ],
)
def test_a_schedule_without_a_length_is_as_long_as_the_fit(limits, accumulate, updates):
    seen, fitted = rates_of(WARM, of=lambda lr: linear(lr=lr, accumulate=accumulate), **limits)
    expected = schedule.cosine(0.1, updates=updates, warmup=round(0.25 * updates))
    assert seen == [expected(update) for update in range(updates)] and fitted.updates == updates
    assert f"lr         {expected!r}: " in "\n".join(fitted.plan)


class Stream:
    def __iter__(self):
        return iter(zip(*line(), strict=True))


def test_a_stream_needs_a_number_of_updates():
    stream = data.Loader(Stream(), batch_size=16)
    seen, _ = rates_of(WARM, train=stream, batch_size=None, updates=8)
    assert seen == [WARM.with_updates(8)(update) for update in range(8)]
    text = r"lr=schedule.cosine\(0.1, warmup=0.25\) takes its length.*a stream without a length; give fit updates="
    with pytest.raises(InvalidArgument, match=text):
        rates_of(WARM, train=stream, batch_size=None, epochs=2)


def test_a_limit_in_minutes_alone_is_no_length():
    text = "only minutes= limits it; give fit epochs=... or updates=... as well, or give the schedule a length"
    with pytest.raises(InvalidArgument, match=text):
        linear(lr={"*": 2 * WARM}).fit(line(), minutes=1, show=False)
    linear(lr=schedule.step(0.1, every=3)).fit(line(), minutes=0.001, show=False)


def test_mappings_and_combinations_get_their_lengths():
    lr = {"bias": schedule.linear(0.0, 0.1).then(WARM, at=0.5), "*": 0.5 * WARM}
    seen, _ = rates_of(lr, epochs=3)
    bias = schedule.linear(0.0, 0.1, 6).then(schedule.cosine(0.1, updates=6, warmup=2), at=6)
    assert [rate["bias"] for rate in seen] == [bias(update) for update in range(12)]
    assert [rate["*"] for rate in seen] == [0.5 * WARM.with_updates(12)(update) for update in range(12)]
    shown = linear(lr=lr).explain(line(), epochs=3, batch_size=16)
    assert (
        f"lr         'bias': {bias!r}: 0 at first, at most 0.1 (update 9), {bias(11):.4g} at the end (update 12)"
        in shown
    )


def test_one_learner_trains_fits_of_different_lengths():
    given = linear(lr=WARM)
    for epochs in (2, 5):
        fitted = given.fit(line(), epochs=epochs, batch_size=16, show=False)
        assert f"updates={4 * epochs}" in "\n".join(fitted.plan)
    assert given.lr == WARM and stoker.lr_find(given, line(), steps=20).suggestion > 0


def test_an_unchanged_fit_resumes_to_the_same_bits(tmp_path):
    left, whole = killed_run(tmp_path, of=learner(lr=schedule.cosine(1e-2, warmup=0.1)))
    resumed = fit(left, of=learner(lr=schedule.cosine(1e-2, warmup=0.1)))
    assert result_of(resumed) == whole and texts(resumed.record) == []


def test_a_run_with_more_epochs_continues_on_the_longer_curve_and_says_so(tmp_path):
    given = learner(lr=schedule.cosine(1e-2, warmup=0.1))
    fit(tmp_path / "run", of=given, epochs=2)
    settings = {"valid": samples(40), "batch_size": 16, "run": tmp_path / "run", "resume": True}
    explained = given.explain(samples(96), epochs=4, **settings)
    seen = []
    resumed = fit(
        tmp_path / "run", of=given, epochs=4, callbacks=[callbacks.on(update=lambda ctx: seen.append(ctx.lr))]
    )
    longer = schedule.cosine(1e-2, updates=24, warmup=2)
    assert seen == [longer(update) for update in range(12, 24)]
    change = f"lr: schedule.cosine(0.01, updates=12, warmup=1) before, {longer!r} now"
    assert texts(resumed.record) == [f"{change}; the run continues with the new setting"]
    assert f"update 12, with other settings: {change}" in explained


def test_a_fit_that_continues_takes_the_longer_curve_and_says_so():
    seen, fitted = rates_of(WARM, epochs=2)
    fitted.continue_(epochs=3, show=False)
    longer = schedule.cosine(0.1, updates=20, warmup=5)
    assert seen[8:] == [longer(update) for update in range(8, 20)]
    (text,) = texts(fitted.record)
    assert text.endswith(f"schedule.cosine(0.1, updates=8, warmup=2) before, {longer!r} from update 9 on")
    with pytest.raises(InvalidArgument, match="only minutes= limits it"):
        fitted.continue_(minutes=1, show=False)
    fitted.continue_(epochs=1, show=False)
    assert len(seen) == 24


# --- functions, and schedulers of torch


def test_a_function_of_the_update_number_is_a_learning_rate():
    seen, _ = rates_of(lambda update: 0.1 / (1 + update), epochs=2)
    assert seen == [0.1 / (1 + update) for update in range(8)]


def test_a_function_is_asked_for_the_updates_of_the_fit_only(tmp_path):
    rates = [0.1 / (1 + update) for update in range(18)]
    left, whole = killed_run(tmp_path, of=learner(lr=lambda update: rates[update]))
    for _ in range(2):  # the second time it is finished
        assert result_of(fit(left, of=learner(lr=lambda update: rates[update]))) == whole


@pytest.mark.parametrize(
    ("lr", "error", "text"),
    [
        (lambda update: 0.1 - update, InvalidArgument, "the learning rate is -0.9 at update 1; expected at least 0"),
        (lambda update: float("nan"), InvalidArgument, "has no finite value at update 0"),
        (lambda update: 1 / (7 - update), InvalidArgument, "has no finite value at update 7"),  # the last one
        (lambda update: None, WrongType, "gives None at update 0; expected a number"),
        (lambda: 0.1, TypeError, "takes 0 positional arguments"),
        ({"bias": 0.1, "*": lambda update: -1.0}, InvalidArgument, r"rate of '\*' is -1 at update 0"),
    ],
)
def test_its_values_are_checked_before_anything_is_trained(tmp_path, lr, error, text):
    model = nn.Linear(3, 1)
    before = model.weight.clone()
    with pytest.raises(error, match=text):
        linear(model=model, lr=lr).fit(line(), epochs=2, batch_size=16, run=tmp_path / "run", show=False)
    assert torch.equal(model.weight, before) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("lr", ["0.1", None, [0.1], lr_scheduler.StepLR, torch.optim.SGD, {"*": "0.1"}])
def test_what_is_not_a_learning_rate_is_an_error_of_the_learner(lr):
    with pytest.raises(WrongType, match="schedule"):
        linear(lr=lr)


@pytest.mark.parametrize("every", ["update", "epoch"])
def test_a_fit_with_a_scheduler_of_torch_has_the_weights_of_the_plain_loop(every):
    def warm(optimizer):
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])

    x, y = line()
    torch.manual_seed(0)
    ours, model = nn.Linear(3, 1), nn.Linear(3, 1)
    model.load_state_dict(ours.state_dict())
    head, rest = {"params": [model.bias], "lr": 0.2}, {"params": [model.weight], "lr": 0.05}
    optimizer = torch.optim.SGD([head, rest], momentum=0.9, fused=True)
    scheduler = warm(optimizer)
    for _ in range(5):
        for start in range(0, 64, 16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[start : start + 16]), y[start : start + 16]).backward()
            optimizer.step()
            if every == "update":
                scheduler.step()
        if every == "epoch":
            scheduler.step()
    lr = {"bias": schedule.torch(warm, 0.2, every=every), "*": schedule.torch(warm, 0.05, every=every)}
    given = linear(model=ours, lr=lr, optimizer=optim.SGD(momentum=0.9))
    fitted = given.fit(data.Loader((x, y), batch_size=16), epochs=5, keep="last", show=False)
    assert same(fitted.model, model) and model.weight.abs().sum() > 1


@pytest.mark.parametrize("every", ["update", "epoch"])
def test_a_run_with_a_scheduler_of_torch_resumes_to_the_same_bits(tmp_path, every):
    lr = schedule.torch(lr_scheduler.CosineAnnealingLR, 1e-2, T_max=18, every=every)
    left, whole = killed_run(tmp_path, of=learner(lr=lr))
    assert result_of(fit(left, of=learner(lr=lr))) == whole


def test_a_scheduler_that_counts_epochs_needs_their_length():
    lr = schedule.torch(lr_scheduler.StepLR, 0.1, step_size=1, every="epoch")
    with pytest.raises(InvalidArgument, match="a stream without a length; count updates: every='update'"):
        rates_of(lr, train=data.Loader(Stream(), batch_size=16), batch_size=None, updates=8)
    seen, _ = rates_of(lr, epochs=2, of=lambda lr: linear(lr=lr, accumulate=2))
    assert seen == [0.1, 0.1, 0.1 * 0.1, 0.1 * 0.1]
    seen, _ = rates_of(lr, minutes=60, epochs=2)
    assert len(set(seen)) == 2
