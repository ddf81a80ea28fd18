"""Precision: the types of the forward pass, TF32, and the loss scale of fp16."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks
from stoker.engine import LossScale
from stoker.engine._precision import float32_settings
from stoker.engine._replayable import fingerprint_modules
from stoker.gradients import Gradients
from tests.checkpoint.states import write_and_read
from tests.learner.fits import line, linear, same


class RecordsTypes(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.types = []

    def forward(self, x):
        out = super().forward(x)
        self.types.append(out.dtype)
        return out


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_the_forward_pass_computes_in_the_type_of_the_precision(precision, dtype):
    model = RecordsTypes()
    result = linear(model=model, precision=precision).fit(line(), valid=line(), epochs=1, show=False)
    result.evaluate(line())
    result.predict(line())
    assert set(model.types) == {dtype} and len(model.types) == 9  # one before the first update
    assert model.weight.dtype == torch.float32


def test_tf32_is_on_during_the_fit_only():
    before = torch.get_float32_matmul_precision()
    seen = []
    watch = callbacks.on(update=lambda ctx: seen.append(torch.get_float32_matmul_precision()))
    linear(precision="tf32").fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == ["high"] and torch.get_float32_matmul_precision() == before


SETTINGS = {
    "all": torch.backends,
    "matrices": torch.backends.cuda.matmul,
    "cudnn": torch.backends.cudnn,
    "convolutions": torch.backends.cudnn.conv,
    "recurrent": torch.backends.cudnn.rnn,
    "matrices on a CPU": torch.backends.mkldnn.matmul,
}


@pytest.fixture(params=[(name, value) for name in SETTINGS for value in ("ieee", "tf32")], ids=" ".join)
def new_setting(request):
    """One of PyTorch's new settings is used, after which reading the old ones may raise."""
    name, value = request.param
    before = SETTINGS[name].fp32_precision
    SETTINGS[name].fp32_precision = value
    yield
    SETTINGS[name].fp32_precision = before


def all_settings():
    return {name: place.fp32_precision for name, place in SETTINGS.items()}


def test_tf32_works_with_pytorchs_new_settings(new_setting):
    before, seen = all_settings(), []
    watch = callbacks.on(update=lambda ctx: seen.append(float32_settings()))
    linear(precision="tf32").fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == [("tf32",) * 4] and all_settings() == before


def test_fp32_works_with_pytorchs_new_settings(new_setting):
    before, fingerprint = all_settings(), fingerprint_modules([], [], [])
    linear(precision="fp32").fit(line(), updates=1, show=False)
    assert all_settings() == before and fingerprint_modules([], [], []) == fingerprint


def test_the_fingerprint_changes_with_pytorchs_settings():
    place = torch.backends.cuda.matmul
    before, fingerprint = place.fp32_precision, fingerprint_modules([], [], [])
    place.fp32_precision = "tf32"
    try:
        assert fingerprint_modules([], [], []) != fingerprint
    finally:
        place.fp32_precision = before


def by_hand(updates, *, limit, factor=65536.0):
    """The loop in plain torch: scale, unscale, clip, step; an overflow halves the factor and skips the step."""
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
    return x, y * 30  # errors of this size overflow fp16 with the first loss scales


def test_fp16_unscales_before_clipping_and_counts_skipped_updates():
    torch.manual_seed(0)
    start = nn.Linear(3, 1)
    learner = linear(model=copy.deepcopy(start), precision="fp16", clip_norm=0.5)
    result = learner.fit(scaled_up(), updates=20, batch_size=16, show=False)
    model, skipped, _ = by_hand(20, limit=0.5)
    assert skipped > 0
    assert same(result.model, model)
    assert result.updates == 20
    assert result.record.events_of("end")[0].extra["skipped"] == skipped
    assert not result.record.events_of("warning")  # finding the scale is normal


def test_an_overflow_in_an_accumulation_window_skips_its_batch_only():
    result = linear(precision="fp16", accumulate=4).fit(scaled_up(), epochs=10, batch_size=16, show=False)
    assert result.record.events_of("end")[0].extra["skipped"] > 0
    assert all(torch.isfinite(parameter).all() for parameter in result.model.parameters())


def test_a_nan_in_the_data_stops_an_fp16_fit():
    x, y = line()
    with pytest.raises(stoker.NotFinite, match="the batch"):
        linear(precision="fp16").fit((x * torch.nan, y), epochs=1, show=False)


def test_the_loss_scale_grows_after_2000_updates_and_is_at_least_one():
    scale = LossScale()
    for _ in range(2000):
        scale.adjust(finite=True)
    assert scale.factor == 2 * 65536
    for _ in range(40):
        scale.adjust(finite=False)
    assert scale.factor == 1.0


def test_a_loss_scale_resumes():
    for place in (0, 1, 3, 1999, 2002, 2100):
        whole, part = LossScale(), LossScale()
        for number in range(2200):
            if number == place:
                state, part = write_and_read(part.state_dict()), LossScale()
                part.load_state_dict(state)
            for scale in (whole, part):
                scale.adjust(finite=number != 2)
        assert part.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    "state", [{}, None, {"factor": 2.0}, {"factor": 0.5, "steady": 0}, {"factor": float("nan"), "steady": 0},
              {"factor": 2.0, "steady": -1}, {"factor": "2", "steady": 0}], ids=str
)  # fmt: skip
def test_a_wrong_state_of_a_loss_scale_is_refused(state):
    scale = LossScale()
    with pytest.raises(stoker.StateMismatch, match="expected a factor of at least 1 and a count of updates; got"):
        scale.load_state_dict(state)
    assert scale.state_dict() == {"factor": 65536.0, "steady": 0}


def test_unscaling_is_exact():
    scale, model = LossScale(), nn.Linear(2, 1)
    grads = Gradients({"weight": torch.tensor([[0.1, -3.7]]) * 65536, "bias": torch.tensor([1e-3]) * 65536}, model)
    true = scale.unscale(grads)
    assert torch.equal(true["weight"], torch.tensor([[0.1, -3.7]])) and torch.equal(true["bias"], torch.tensor([1e-3]))
