"""State that is carried from batch to batch: as in a plain loop, in a resumed run, and not touched by validation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, Checkpoint, data, optim
from tests.hooks import Crash, crash_at

STREAMS, WINDOW, WINDOWS, WORDS, WIDTH = 4, 5, 6, 7, 6


def windows():
    """Consecutive windows of several streams, so that row r of a batch continues row r of the batch before."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, WORDS, (STREAMS, WINDOWS * WINDOW + 1), generator=generator)
    both = tokens[:, :-1], tokens[:, 1:]
    inputs, targets = (each.reshape(STREAMS, WINDOWS, WINDOW).transpose(0, 1).flatten(0, 1) for each in both)
    return data.Loader((inputs, targets), batch_size=STREAMS)


class Language(nn.Module):
    """Truncated backpropagation through time: the state is a buffer, detached, and written in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.body = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("hidden", torch.zeros(1, STREAMS, WIDTH))

    def forward(self, inputs):
        outputs, hidden = self.body(self.embed(inputs), self.hidden.clone())
        self.hidden.copy_(hidden.detach())
        return self.head(outputs).transpose(1, 2)


class Reset(Callback):
    def on_epoch_begin(self, ctx):
        ctx.model.hidden.zero_()


def fit(model=None, *, hooks=(), epochs=3, **arguments):
    learner = stoker.Learner(
        Language() if model is None else model,
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(fused=False),
        lr=0.01,
        seed=0,
    )
    given = {"keep": "last", "epochs": epochs, "callbacks": [Reset(), *hooks], "show": False, **arguments}
    return learner.fit(windows(), **given)


def assert_same(found, expected):
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


def test_it_gives_the_bits_of_a_plain_loop():
    model, batches = Language(), list(windows())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        hidden = torch.zeros(1, STREAMS, WIDTH)
        for inputs, targets in batches:
            outputs, hidden = model.body(model.embed(inputs), hidden)
            optimizer.zero_grad()
            F.cross_entropy(model.head(outputs).transpose(1, 2), targets).backward()
            optimizer.step()
            hidden = hidden.detach()
    model.hidden.copy_(hidden)
    assert_same(fit().model, model)


def test_validation_does_not_touch_it():
    assert_same(fit(valid=windows(), validate_every=4).model, fit().model)


def test_validation_leaves_expanded_and_sparse_buffers_alone():
    class Unusual(Language):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.arange(3).expand(2, 3))
            self.register_buffer("sparse", torch.eye(2).to_sparse(), persistent=False)

    fit(Unusual(), valid=windows(), epochs=1)


@pytest.mark.parametrize("stop", [4, pytest.param(9, marks=pytest.mark.soak)])
def test_a_resumed_run_continues_with_it(tmp_path, stop):
    every = Checkpoint(every=2, background=False)
    with pytest.raises(Crash):
        fit(run=tmp_path / "run", checkpoint=every, hooks=[crash_at(update=stop)])
    assert_same(fit(run=tmp_path / "run", checkpoint=every, resume=True).model, fit().model)


def test_state_in_an_attribute_is_not_saved_and_a_warning_says_so(tmp_path):
    class InAttribute(Language):
        def forward(self, inputs):
            outputs, hidden = self.body(self.embed(inputs), self.state if hasattr(self, "state") else self.hidden)
            self.state = hidden.detach()
            return self.head(outputs).transpose(1, 2)

    fitted = fit(InAttribute(), run=tmp_path / "run", epochs=1)
    texts = [event.text for event in fitted.record.events_of("warning")]
    assert any("InAttribute changes `state`, which is not in its state" in text for text in texts)
    assert any("make it a buffer" in text for text in texts)


def test_state_that_is_not_detached_is_an_error_that_says_what_to_do():
    class Attached(Language):
        def forward(self, inputs):
            outputs, hidden = self.body(self.embed(inputs), getattr(self, "state", None))
            self.state = hidden
            return self.head(outputs).transpose(1, 2)

    with pytest.raises(stoker.NotDifferentiable, match=r"to be detached: self\.hidden\.copy_\(hidden\.detach\(\)\)"):
        fit(Attached())

    class Written(Language):
        def forward(self, inputs):
            outputs, hidden = self.body(self.embed(inputs), self.hidden)
            self.hidden.copy_(hidden.detach())
            return self.head(outputs).transpose(1, 2)

    with pytest.raises(stoker.NotDifferentiable, match=r"has to be read as a copy: self\.hidden\.clone\(\)"):
        fit(Written())


def test_micro_batches_do_not_fit_to_it():
    with pytest.raises(RuntimeError, match="hidden"):
        fit(micro_batch=2)


# --- optimizers that evaluate the loss several times


def test_an_optimizer_with_a_closure_is_refused_with_a_recipe():
    learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), optimizer=optim.wrap(torch.optim.LBFGS))
    with pytest.raises(stoker.InvalidArgument, match=r"wrap\(LBFGS\) evaluates the loss several times .*\.minimize\("):
        learner.fit((torch.randn(8, 3), torch.randn(8, 1)), epochs=1, show=False)
    with pytest.raises(stoker.InvalidArgument, match="docs/advanced.md"):
        learner.explain((torch.randn(8, 3), torch.randn(8, 1)), epochs=1)


def test_the_recipe_gives_the_bits_of_torch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 1), nn.Linear(3, 1)
    theirs.load_state_dict(ours.state_dict())
    optimizer = optim.wrap(torch.optim.LBFGS, max_iter=4).init(ours)
    reference = torch.optim.LBFGS(theirs.parameters(), max_iter=4)

    def closure():
        reference.zero_grad()
        loss = F.mse_loss(theirs(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        loss = optimizer.minimize(lambda: F.mse_loss(ours(x), y), lr=1.0)
        assert torch.equal(loss, reference.step(closure))
    assert_same(ours, theirs)
