"""16 bits: the types of the forward pass, and the scale of the gradients in the right order."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, metrics, optim
from stoker.engine import LossScale
from stoker.engine._fingerprint import fingerprint_modules
from stoker.engine._precision import rounding
from stoker.gradients import Gradients
from tests.checkpoint.states import write_and_read as through
from tests.engine.fits import line, linear, same


class Seen(nn.Linear):
    kinds: list = []

    def forward(self, x):
        out = super().forward(x)
        self.kinds.append(out.dtype)
        return out


@pytest.mark.parametrize(
    ("precision", "kind"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_the_forward_pass_computes_in_the_type(precision, kind):
    model = Seen(3, 1)
    model.kinds = []
    result = linear(model=model, precision=precision).fit(line(), valid=line(), epochs=1, show=False)
    result.evaluate(line())
    result.predict(line())
    assert set(model.kinds) == {kind} and len(model.kinds) == 8
    assert model.weight.dtype == torch.float32


def test_tf32_holds_inside_fit_only():
    before = torch.get_float32_matmul_precision()
    seen = []
    watch = callbacks.on(update=lambda ctx: seen.append(torch.get_float32_matmul_precision()))
    linear(precision="tf32").fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == ["high"] and torch.get_float32_matmul_precision() == before


NEWER = {
    "all": torch.backends,
    "matrices": torch.backends.cuda.matmul,
    "cudnn": torch.backends.cudnn,
    "convolutions": torch.backends.cudnn.conv,
    "recurrent": torch.backends.cudnn.rnn,
    "matrices on a CPU": torch.backends.mkldnn.matmul,
}


@pytest.fixture(params=[(name, how) for name in NEWER for how in ("ieee", "tf32")], ids=" ".join)
def newer(request):
    """PyTorch's newer settings, after which asking for the older ones may raise."""
    name, how = request.param
    before = NEWER[name].fp32_precision
    NEWER[name].fp32_precision = how
    yield name, how
    NEWER[name].fp32_precision = before


def _all():
    return {name: place.fp32_precision for name, place in NEWER.items()}


def test_tf32_holds_inside_fit_however_pytorch_was_set(newer):
    before, seen = _all(), []
    watch = callbacks.on(update=lambda ctx: seen.append(rounding()))
    linear(precision="tf32").fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == [("tf32",) * 4] and _all() == before


def test_nothing_is_asked_for_that_pytorch_refuses_to_say(newer):
    before, pins = _all(), fingerprint_modules([], [], [])
    linear(precision="fp32").fit(line(), updates=1, show=False)
    assert _all() == before and fingerprint_modules([], [], []) == pins


def test_a_program_is_made_anew_where_pytorch_was_set_otherwise():
    place = torch.backends.cuda.matmul
    before, pins = place.fp32_precision, fingerprint_modules([], [], [])
    place.fp32_precision = "tf32"
    try:
        assert fingerprint_modules([], [], []) != pins
    finally:
        place.fp32_precision = before


def by_hand(updates, *, limit, factor=65536.0):
    """The loop in plain torch: scale, unscale, clip, step; an overflow halves the factor and steps nothing."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    loader, skipped = stoker.data.Loader(scaled_up(), batch_size=16, shuffle=0), 0
    done = 0
    for epoch in range(updates):
        for x, y in loader.at(epoch=epoch):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            (loss * factor).backward()
            for parameter in model.parameters():
                parameter.grad.mul_(1 / factor)
            if not all(torch.isfinite(parameter.grad).all() for parameter in model.parameters()):
                factor, skipped = factor / 2, skipped + 1
                continue
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            done += 1
            if done == updates:
                return model, skipped, factor
    raise AssertionError("not reached")


def scaled_up():
    x, y = line()
    return x, y * 30  # errors of this size overflow 16 bits at the first scales


def test_fp16_unscales_before_it_clips_and_counts_what_it_skips():
    torch.manual_seed(0)
    start = nn.Linear(3, 1)
    learner = linear(model=copy.deepcopy(start), precision="fp16", clip_norm=0.5)
    result = learner.fit(scaled_up(), updates=20, batch_size=16, show=False)
    model, skipped, _ = by_hand(20, limit=0.5)
    assert skipped > 0
    assert same(result.model, model)
    assert result.updates == 20
    assert result.record.events_of("end")[0].extra["skipped"] == skipped
    assert not result.record.events_of("warning")  # finding the scale is no reason to worry


def test_hooks_and_meters_see_the_true_gradients_in_fp16():
    sizes = []
    watch = callbacks.on(train_batch_after_backward=lambda ctx: sizes.append(float(ctx.grads.norm())))
    learner = linear(precision="fp16", metrics=[metrics.GradientNorm()])
    learner.fit(line(), updates=5, batch_size=16, callbacks=[watch], show=False)
    assert max(size for size in sizes if size < float("inf")) < 100


def test_an_overflow_in_a_window_costs_its_batch_only():
    result = linear(precision="fp16", accumulate=4).fit(scaled_up(), epochs=10, batch_size=16, show=False)
    assert result.record.events_of("end")[0].extra["skipped"] > 0
    assert all(torch.isfinite(parameter).all() for parameter in result.model.parameters())


def test_a_real_nan_is_one_in_fp16_too():
    x, y = line()
    with pytest.raises(stoker.NotFinite, match="the batch"):
        linear(precision="fp16").fit((x * torch.nan, y), epochs=1, show=False)


def test_the_scale_grows_after_many_good_updates_and_falls_to_one_at_most():
    scaler = LossScale()
    for _ in range(2000):
        scaler.adjust(finite=True)
    assert scaler.factor == 2 * 65536
    for _ in range(40):
        scaler.adjust(finite=False)
    assert scaler.factor == 1.0


def test_a_scale_goes_on_where_it_was_stopped():
    for place in (0, 1, 3, 1999, 2002, 2100):
        whole, part = LossScale(), LossScale()
        for number in range(2200):
            if number == place:
                state, part = through(part.state_dict()), LossScale()
                part.load_state_dict(state)
            for scaler in (whole, part):
                scaler.adjust(finite=number != 2)
        assert (part.factor, part.steady) == (whole.factor, whole.steady)


@pytest.mark.parametrize(
    "state", [{}, None, {"factor": 2.0}, {"factor": 0.5, "steady": 0}, {"factor": float("nan"), "steady": 0},
              {"factor": 2.0, "steady": -1}, {"factor": "2", "steady": 0}], ids=str
)  # fmt: skip
def test_what_is_no_state_of_a_scale_is_refused(state):
    scaler = LossScale()
    with pytest.raises(stoker.StateMismatch, match="a scaler's state is a factor of at least 1 and a count of updates"):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == {"factor": 65536.0, "steady": 0}


def test_the_scale_cancels_out_exactly():
    scaler, model = LossScale(), nn.Linear(2, 1)
    grads = Gradients({"weight": torch.tensor([[0.1, -3.7]]) * 65536, "bias": torch.tensor([1e-3]) * 65536}, model)
    true = scaler.unscale(grads)
    assert torch.equal(true["weight"], torch.tensor([[0.1, -3.7]])) and torch.equal(true["bias"], torch.tensor([1e-3]))


def test_a_precision_that_is_none():
    with pytest.raises(stoker.InvalidArgument, match="precision is one of 'fp32', 'tf32', 'bf16', 'fp16'; got 'half'"):
        stoker.Learner(nn.Linear(3, 1), optimizer=optim.SGD(), precision="half")
