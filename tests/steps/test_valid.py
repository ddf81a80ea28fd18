import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as tree

import stoker
from stoker.errors import InvalidArgument, WrongType
from stoker.steps import valid, was_viewed
from tests.steps.architectures import BATCH, CASES, Forces, Residual, noisy

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def made(case, seed=0):
    torch.manual_seed(seed)
    return case.make()


def evaluated(case):
    """The reference: a second model out of the same seed, switched to eval."""
    model = made(case).eval()
    with torch.no_grad():
        return model(case.input)


def same(a, b):
    (left, shape), (right, other) = tree.tree_flatten(a), tree.tree_flatten(b)
    return shape == other and all(x is y is None or torch.equal(x, y) for x, y in zip(left, right, strict=True))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@cases
def test_a_view_gives_what_eval_mode_gives(case):
    assert same(valid(made(case))(case.input), evaluated(case))


@cases
def test_a_view_leaves_everything_as_it_was(case):
    model = made(case)
    before, flags, names = state(model), [m.training for m in model.modules()], set(model.__dict__)
    random = torch.get_rng_state()
    out = valid(model)(case.input)
    assert not any(leaf.requires_grad for leaf in tree.tree_leaves(out) if leaf is not None)
    assert same(state(model), before)
    assert [m.training for m in model.modules()] == flags
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)  # nothing was drawn
    assert set(model.__dict__) == names
    assert torch.is_grad_enabled()
    assert torch.is_autocast_cache_enabled()


def train(case, *, validated, updates=4):
    model = made(case)
    judge = valid(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(updates):
        loss = sum(leaf.square().mean() for leaf in tree.tree_leaves(model(case.input)) if leaf is not None)
        losses.append(loss.detach())
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if validated:
            judge(case.input)
            valid(model)(case.input)
    return losses, state(model), torch.get_rng_state()


@cases
def test_training_is_bit_for_bit_the_same_with_validation_and_without(case):
    assert same(train(case, validated=True), train(case, validated=False))


def test_training_in_one_thread_does_not_notice_validation_in_another():
    case = CASES["residual"]
    expected = train(case, validated=False, updates=60)
    seen, done, started, failures = [], threading.Event(), threading.Event(), []
    model = made(case)

    def judge():
        try:
            view = valid(model)
            while not done.is_set():
                seen.append(view(case.input)["a"].requires_grad or view.training or valid(model).training)
                started.set()
        except BaseException as error:
            failures.append(error)
            started.set()

    threads = [threading.Thread(target=judge) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert started.wait(60)
        torch.manual_seed(0)
        model.load_state_dict(case.make().state_dict())
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
        for _ in range(60):
            assert torch.is_grad_enabled()
            assert all(module.training for module in model.modules())
            loss = sum(leaf.square().mean() for leaf in model(case.input).values())
            losses.append(loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert not any(seen)
    assert same((losses, state(model), torch.get_rng_state()), expected)


def test_it_is_the_same_weights_under_the_same_names():
    model = Residual()
    view = valid(model)
    assert isinstance(view, Residual)
    assert view.blocks[0][0].weight is model.blocks[0][0].weight
    assert [id(p) for p in view.parameters()] == [id(p) for p in model.parameters()]
    assert [id(b) for b in view.buffers()] == [id(b) for b in model.buffers()]
    assert [n for n, _ in view.named_modules()] == [n for n, _ in model.named_modules()]
    assert view.state_dict().keys() == model.state_dict().keys()
    assert not any(module.training for module in view.modules())
    assert all(module.training for module in model.modules())


def test_a_view_of_a_view_is_the_view_itself():
    view = valid(noisy())
    assert valid(view) is view
    assert valid(view[0]) is view[0]
    assert view.eval() is view


def test_a_module_in_a_plain_attribute_is_a_module_still():
    view = valid(CASES["held"].make())
    assert view.first is view.registered[0] is view.order[2]
    assert isinstance(view.first, nn.Sequential)


def test_a_module_that_stands_twice_has_one_view():
    view = valid(CASES["tied"].make())
    assert view.a is view.b
    assert view.a[0] is view.b[0]


def test_it_follows_the_model():
    model = noisy()
    view = valid(model)
    assert view(BATCH).shape == (6, 8)
    model.append(nn.Linear(8, 3))
    model.scale = 3.0
    assert view(BATCH).shape == (6, 3)
    assert view.scale == 3.0
    assert view[-1].weight is model[-1].weight
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.fill_(7)
    assert (view(BATCH) == 7).all()
    model[-1] = nn.Identity()
    assert view(BATCH).shape == (6, 8)
    del model[3:]
    assert len(view) == 3


def test_it_follows_what_holds_modules_later():
    model = noisy()
    view = valid(model)
    view(BATCH)
    model[3].forward = lambda x: F.dropout(x, 0.5, model.training)  # a closure over the model, which trains
    model.extra = [nn.Dropout(0.9)]
    assert view.extra[0].training is False
    reference = copy.deepcopy(model)
    reference[3].forward = lambda x: x
    assert torch.equal(view(BATCH), reference.eval()(BATCH))


def test_it_follows_a_module_that_changes_its_class():
    model = noisy()
    view = valid(model)
    view(BATCH)
    nn.utils.parametrizations.spectral_norm(model[0])
    reference = copy.deepcopy(model).eval()
    before = state(model)
    assert torch.equal(view(BATCH), reference(BATCH))
    assert same(state(model), before)
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert torch.equal(view(BATCH), copy.deepcopy(model).eval()(BATCH))


def test_what_eval_mode_writes_is_seen_in_the_model():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.net = noisy()

        def forward(self, x):
            self.calls += 1
            self.last, self.where, self.parts, self.again = x, self.net, [self.net[0]], self.forward
            return self.net(x)

    model = Counting()
    view = valid(model)
    view(BATCH)
    view(BATCH)
    assert model.calls == 2
    assert model.last is BATCH
    assert model.where is model.net  # the module itself, not a view of it
    assert model.parts[0] is model.net[0]
    assert model.again.__self__ is model
    assert type(model.where) is nn.Sequential
    assert all(module.training for module in model.modules())


def test_a_view_can_be_changed_like_the_model_it_shows():
    model = noisy()
    view = valid(model)
    view.append(nn.Linear(8, 3))
    view.insert(0, nn.Identity())
    view[1] = view[1]
    view.tail = view[0]
    assert type(model[0]) is type(model.tail) is nn.Identity
    assert type(model[1]) is type(model[5]) is nn.Linear
    del view.tail
    del view[4]
    assert len(model) == 5
    view.register_buffer("seen", torch.ones(1))
    handle = view[1].register_forward_hook(lambda module, args, out: out * 0 + 5)
    assert (model[1](torch.randn(6, 8)) == 5).all()
    handle.remove()
    assert not model[1]._forward_hooks
    assert model.seen == 1
    assert type(model._modules) is dict
    view.double()
    assert model[1].weight.dtype == torch.float64


def test_lazy_modules_become_ordinary_ones():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Dropout(0.5))
    out = valid(model)(BATCH)
    assert type(model[0]) is nn.Linear
    assert type(model[1]) is nn.BatchNorm1d
    assert torch.equal(out, copy.deepcopy(model).eval()(BATCH))
    assert model[0].weight.requires_grad


def test_a_method_of_the_instance_runs_without_autograd_from_outside_as_well():
    model = CASES["stored"].make()
    model.scaled = lambda x: x * model.net[0].weight[0]
    view = valid(model)
    for method in (view.run, view.twice, view.half, view.scaled):
        assert not method(BATCH).requires_grad
    assert model.scaled(BATCH).requires_grad


def test_forward_may_turn_autograd_on_and_another_view_inside_turns_it_off():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.teacher = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), valid(nn.Linear(8, 8))

        def forward(self, x):
            with torch.enable_grad():
                return self.net(x), self.teacher(x), self.net[:1](x)

    mine, teachers, sliced = valid(Both())(BATCH)
    assert mine.requires_grad
    assert sliced.requires_grad
    assert not teachers.requires_grad
    assert valid(Forces())(BATCH).abs().sum() > 0


def test_what_it_gives_can_be_saved_for_backward():
    teacher, student = valid(noisy()), nn.Linear(8, 8)
    (student(BATCH) * teacher(BATCH)).sum().backward()
    assert student.weight.grad is not None


def test_autocast_keeps_no_cast_that_lost_its_graph():
    model = nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        target = valid(model)(BATCH)
        loss = (model(BATCH) - target + 1).square().sum()
    loss.backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("wrap", [lambda m: torch.compile(m, backend="eager"), nn.DataParallel], ids=["compile", "dp"])
def test_a_wrapped_model_is_viewed_without_its_wrapper(wrap):
    model = noisy()
    reference = copy.deepcopy(model).eval()(BATCH)
    for wrapped in (wrap(model), nn.Sequential(wrap(model))):
        view = valid(wrapped.cpu())  # DataParallel moves a model to the GPU where there is one
        assert torch.equal(view(BATCH), reference)
        assert all(name.split(".")[-1] in ("weight", "bias") for name, _ in view.named_parameters())
        assert not any("module" in name or "_orig_mod" in name for name in view.state_dict())
        assert model.training
        assert was_viewed(wrapped)
    inner = valid(wrap(model))
    assert isinstance(inner, nn.Sequential)
    name = "module" if isinstance(wrap(model), nn.DataParallel) else "_orig_mod"
    assert getattr(inner, name) is inner
    assert not hasattr(inner[0], name)


def test_a_compiled_call_of_a_module_is_not_used():
    model = noisy()
    reference = copy.deepcopy(model).eval()(BATCH)
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph.forward

    model.compile(backend=backend)
    assert torch.equal(valid(model)(BATCH), reference)
    assert not traced
    with pytest.raises(InvalidArgument, match="a view runs eagerly and can't be compiled; compile the model itself"):
        valid(model).compile(backend="eager")


def test_compiled_methods_run_as_they_were_before():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.run = noisy(), torch.compile(self._run, backend="eager")

        def _run(self, x):
            return self.net(x) + (10 if self.training else 0)

        @torch.compile(backend="eager")
        def encode(self, x):
            return self.net(x) * (10 if self.training else 1)

        @torch.compile(backend="eager")
        def forward(self, x):
            return self.encode(x) + self.run(x)

    model = Model()
    view, before = valid(model), state(model)
    once = copy.deepcopy(model.net).eval()(BATCH)
    assert torch.equal(view.encode(BATCH), once)
    assert torch.equal(view.run(BATCH), once)
    assert torch.equal(view(BATCH), once + once)
    assert same(state(model), before)
    model(BATCH)
    assert not same(state(model), before)


def test_compiled_code_that_calls_a_view_breaks_its_graph_and_is_right():
    model = noisy()
    view, reference = valid(model), copy.deepcopy(model).eval()(BATCH)
    before = state(model)

    def twice(x):
        return view(x) + view.forward(x), view.training

    for _ in range(2):
        got, training = torch.compile(twice, backend="eager")(BATCH)
        assert torch.equal(got, reference + reference)
        assert not training
    assert torch.equal(torch.compile(view, backend="eager")(BATCH), reference)
    assert same(state(model), before)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="should not be traced"):
        torch.compile(lambda x: view(x) + 1, backend="eager", fullgraph=True)(BATCH)


def test_functional_call():
    model = noisy()
    parameters = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    assert (torch.func.functional_call(valid(model), parameters, (BATCH,)) == 0).all()
    assert model[0].weight.abs().sum() > 0


def test_training_mode_is_refused():
    view = valid(noisy())
    text = "a view is always in eval mode, so this Sequential can't be switched to training; call the model itself"
    with pytest.raises(InvalidArgument, match=text):
        view.train()
    with pytest.raises(InvalidArgument, match="a view is always in eval mode"):
        view[0].training = True
    view.training = False


def test_a_copy_of_a_view_is_a_view_of_a_copy():
    model = noisy()
    view = valid(model)
    other = copy.deepcopy(view)
    assert torch.equal(other(BATCH), view(BATCH))
    assert other[0].weight is not model[0].weight
    assert not other.training
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(other(BATCH), view(BATCH))


@pytest.mark.parametrize("write", [pickle.dumps, copy.copy, lambda view: torch.save(view, io.BytesIO())])
def test_pickling_is_refused(write):
    with pytest.raises(InvalidArgument, match=r"a view \(of Sequential\) can't be pickled.*use the model itself"):
        write(valid(noisy()))


def test_what_can_not_be_viewed_is_refused():
    with pytest.raises(WrongType, match=r"valid\(\) makes a view of a torch.nn.Module; got function"):
        valid(F.relu)
    with pytest.raises(WrongType, match="got the class Linear, not an instance of it"):
        valid(nn.Linear)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_refused_at_once():
    with pytest.raises(InvalidArgument, match=r"a view of a TorchScript module \(Linear\).*scripted or traced from"):
        valid(nn.Sequential(torch.jit.trace(nn.Linear(8, 8), BATCH)))


def test_it_says_that_it_is_a_view():
    assert repr(valid(nn.Sequential(nn.ReLU()))) == "valid(Sequential(\n  (0): ReLU()\n))"
    assert type(valid(Residual())).__name__ == "Residual"


def test_a_view_that_is_dropped_is_gone_and_so_is_its_model():
    model = noisy()
    watched = [weakref.ref(model), weakref.ref(model[1])]
    gc.disable()  # so that only the reference counts can do it
    try:
        valid(model)(BATCH)
        child = valid(model)[0]
        del model
        assert [ref() for ref in watched] == [None, None]
        assert not child(BATCH).requires_grad
    finally:
        gc.enable()


def test_was_viewed_names_the_last_model_of_this_thread():
    one, two = noisy(), Residual()
    assert not was_viewed(one)
    valid(one)(BATCH)
    assert was_viewed(one)
    assert was_viewed(valid(one))
    assert not was_viewed(two)
    valid(two.blocks)[0](BATCH)
    assert was_viewed(two)
    assert was_viewed(two.blocks)
    assert not was_viewed(one)
    assert not was_viewed(two.heads)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(was_viewed(two)))
    thread.start()
    thread.join()
    assert elsewhere == [False]


def test_was_viewed_is_not_a_top_level_name():
    assert "was_viewed" not in vars(stoker).get("__all__", [])
