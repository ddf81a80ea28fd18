"""`stoker.valid`: the same weights in eval mode, without a trace in the model."""

import copy
import gc
import pickle
import threading
import weakref
from functools import cached_property

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as tree

import stoker
from stoker.errors import InvalidArgument, WrongType
from stoker.steps import valid
from tests.steps.architectures import BATCH, CASES, Helper, Residual, noisy

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def make(case):
    torch.manual_seed(0)
    return case.make()


def same(a, b):
    (left, shape), (right, other) = tree.tree_flatten(a), tree.tree_flatten(b)
    return shape == other and all(x is y is None or torch.equal(x, y) for x, y in zip(left, right, strict=True))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def evaluated(model, batch=BATCH):
    """The reference: a deep copy, switched to eval."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(batch)


# --- the result of eval mode, and no trace of it


@cases
def test_a_view_gives_what_eval_mode_gives_and_leaves_the_model_as_it_was(case):
    # In the same grad mode and without gradients too: torch chooses kernels of LSTMs by both.
    expected = make(case).eval().requires_grad_(False)(case.input)
    model = make(case)
    before, names, random = state(model), set(vars(model)), torch.get_rng_state()
    view = valid(model)
    for _ in range(2):
        out = view(case.input)
        assert same(out, expected)
        assert not any(leaf.requires_grad for leaf in tree.tree_leaves(out) if leaf is not None)
    assert not view.training
    assert same(state(model), before)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert set(vars(model)) == names
    assert torch.is_grad_enabled()


def view_and_make_a_view(model, view, batch):
    view(batch)
    valid(model)(batch)


def train(case, validate=None, *, updates=4):
    model = make(case)
    view = valid(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(updates):
        loss = sum(leaf.square().mean() for leaf in tree.tree_leaves(model(case.input)) if leaf is not None)
        losses.append(loss.detach())
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if validate is not None:
            validate(model, view, case.input)
    return losses, state(model), torch.get_rng_state()


@cases
def test_training_has_the_same_bits_with_validation_and_without(case):
    assert same(train(case, view_and_make_a_view), train(case))


def test_a_validation_that_switches_the_model_changes_the_bits():  # the negative control of the test above
    case = CASES["sequential"]
    assert not same(train(case, lambda model, view, batch: model.eval()(batch)), train(case))


def test_a_training_in_one_thread_does_not_notice_validation_in_another():
    case = CASES["residual"]
    expected = train(case, updates=40)
    seen, done, started, failures = [], threading.Event(), threading.Event(), []
    model = make(case)

    def validate():
        try:
            view = valid(model)
            while not done.is_set():
                seen.append(view(case.input)["a"].requires_grad or view.training or valid(model).training)
                started.set()
        except BaseException as error:
            failures.append(error)
            started.set()

    threads = [threading.Thread(target=validate) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert started.wait(60)
        torch.manual_seed(0)
        model.load_state_dict(case.make().state_dict())
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
        for _ in range(40):
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


def test_what_a_forward_sets_stays_in_the_view_and_what_it_writes_in_place_is_the_models():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("last_sum", torch.zeros(()))
            self.seen, self.net = 0, noisy()

        @cached_property
        def mode(self):
            return self.training

        def forward(self, x):
            self.calls += 1  # in place
            self.last_sum = x.sum()
            self.seen = self.seen + 1
            assert self.mode is False
            return self.net(x)

    model = Counting()
    view = valid(model)
    view(BATCH)
    view(BATCH)
    assert (model.seen, view.seen) == (0, 2)
    assert (model.last_sum, view.last_sum) == (0, BATCH.sum())
    assert model.mode is True
    assert model.calls == 2


# --- the same weights, the same classes


def test_a_view_is_made_of_the_users_own_classes_and_shares_the_memory_of_the_model():
    model = Residual()
    view = valid(model)
    assert [(name, type(module)) for name, module in view.named_modules()] == [
        (name, type(module)) for name, module in model.named_modules()
    ]
    assert [p.data_ptr() for p in view.parameters()] == [p.data_ptr() for p in model.parameters()]
    assert all(isinstance(p, nn.Parameter) and not p.requires_grad for p in view.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert [id(b) for b in view.buffers()] == [id(b) for b in model.buffers()]
    assert view.state_dict().keys() == model.state_dict().keys()
    assert not any(module.training for module in view.modules())
    assert valid(view) is view


def test_what_stands_twice_in_the_model_stands_twice_in_the_view():
    view = valid(CASES["tied"].make())
    assert view.a is view.b
    assert view.head.weight is view.a[0].weight
    held = valid(CASES["held"].make())
    assert held.first is held.registered[0] is held.order[2]


def test_eval_and_train_of_the_users_classes_are_called():
    class MonteCarlo(nn.Dropout):
        def train(self, mode=True):
            return super().train(True)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.evaluated = nn.Sequential(MonteCarlo(0.5), nn.Dropout(0.5)), 0

        def eval(self):
            self.evaluated += 1
            return super().eval()

        def forward(self, x):
            assert type(self.layers[1]) is nn.Dropout
            assert self.__dict__["training"] is False
            return self.layers(x)

    model = Model()
    view = valid(model)
    assert (view.evaluated, model.evaluated) == (1, 0)
    assert [layer.training for layer in view.layers] == [True, False]
    assert (view(torch.ones(8, 8)) == 0).any()


# --- a view follows its model


def test_a_view_follows_every_change_in_place():
    case = CASES["residual"]
    model = make(case)
    view, optimizer = valid(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(BATCH)["a"].square().sum().backward()  # batch norm moves its running statistics
        optimizer.step()
        assert same(view(BATCH), evaluated(model))
    model.load_state_dict(make(case).state_dict())
    assert same(view(BATCH), evaluated(model))
    model.requires_grad_(False).requires_grad_(True)
    assert not view(BATCH)["a"].requires_grad


def test_a_view_follows_modules_and_parameters_that_are_not_registered():
    class Teaching(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher, self.helper = nn.Linear(8, 8), [nn.Linear(8, 8)], Helper(nn.Linear(8, 8))

        def forward(self, x):
            return self.student(x) + self.teacher[0](x) + self.helper(x)

    model = Teaching()
    view = valid(model)
    assert not view(BATCH).requires_grad
    with torch.no_grad():
        model.teacher[0].weight.zero_()
        model.helper.blocks[0].weight.zero_()
    assert torch.equal(view(BATCH), evaluated(model))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.load_state_dict(noisy().state_dict(), assign=True),
        lambda model: model.double(),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(8, 8))),
        lambda model: setattr(model[1], "running_mean", torch.ones(8)),
        lambda model: model[1].register_buffer("extra", torch.ones(8)),
        lambda model: model.append(nn.Linear(8, 3)),
        lambda model: nn.utils.parametrizations.spectral_norm(model[0]),
    ],
    ids=["assign", "dtype", "parameter", "buffer", "new buffer", "new module", "parametrization"],
)
def test_a_view_whose_tensors_are_no_longer_the_models_is_an_error(change):
    model = noisy()
    view = valid(model)
    view(BATCH)
    change(model)
    with pytest.raises(InvalidArgument, match=r"replaced since this view was made.*make a new view with stoker.valid"):
        view(BATCH)
    batch = BATCH.to(next(model.parameters()).dtype)
    assert torch.equal(valid(model)(batch), evaluated(model, batch))


# --- parameters of many kinds


class Named(nn.Parameter):
    """A parameter of the user's own class, with an attribute and a method."""

    def doubled(self):
        return 2 * self


class Scaling(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x @ self.scale.doubled() if isinstance(self.scale, Named) else x @ self.scale


def test_a_view_keeps_the_class_and_the_attributes_of_parameters():
    model = Scaling(Named(torch.randn(8, 8)))
    model.scale.label = "scale"
    view = valid(model)
    assert type(view.scale) is Named
    assert view.scale.label == "scale"
    assert not view(BATCH).requires_grad
    with torch.no_grad():
        model.scale.fill_(3)
    assert torch.equal(view(BATCH), evaluated(model))


class Logged(torch.Tensor):
    """A subclass of Tensor, as those of quantised weights are."""


def test_a_view_shares_parameters_of_a_subclass_of_tensor():
    model = Scaling(nn.Parameter(torch.randn(8, 8).as_subclass(Logged)))
    view = valid(model)
    assert type(view.scale) is Logged
    assert isinstance(view.scale, nn.Parameter)
    with torch.no_grad():
        model.scale.fill_(3)
    assert (view.scale == 3).all()


def test_sparse_buffers_are_shared_and_sparse_parameters_are_an_error():
    model = noisy()
    model.register_buffer("graph", torch.eye(8).to_sparse())
    assert valid(model).graph is model.graph
    with pytest.raises(InvalidArgument, match=r"can't share a parameter of the layout torch.sparse_coo"):
        valid(Scaling(nn.Parameter(torch.eye(8).to_sparse())))


def test_a_tensor_with_a_graph_is_detached_wherever_the_model_keeps_it():
    model = noisy()
    model.last = model(BATCH)
    model.history = {"losses": [model.last.sum()]}
    model.recorder = Helper(nn.ReLU())
    model.recorder.last = model.last
    model[0].register_forward_hook(model.recorder.apply)
    view = valid(model)
    assert torch.equal(view.last, model.last)
    assert not any(tensor.requires_grad for tensor in (view.last, view.recorder.last, view.history["losses"][0]))
    assert model.last.requires_grad


def test_error_for_a_lazy_module():
    with pytest.raises(InvalidArgument, match=r"no shape yet \(a lazy module\): run one batch through the model first"):
        valid(nn.Sequential(nn.LazyLinear(4), nn.Dropout(0.5)))


# --- gradients


def test_a_forward_may_differentiate_with_respect_to_its_input():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))

        def forward(self, x):
            return self.net(x)

        def valid_step(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self(x).sum(), x)[0]

    model = Energy()
    expected = copy.deepcopy(model).eval().valid_step(BATCH)
    with torch.no_grad():  # as a fit calls it
        assert torch.equal(valid(model).valid_step(BATCH), expected)
    assert torch.equal(valid(model).valid_step(BATCH), expected)


def test_a_view_passes_gradients_on_to_its_input_and_none_to_the_model():
    model, student = noisy(), nn.Linear(8, 8)
    (student(BATCH) * valid(model)(BATCH)).sum().backward()
    assert student.weight.grad is not None
    x = BATCH.clone().requires_grad_()
    valid(model)(x).sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert not valid(model)(x).requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_methods_and_properties_have_no_graph_either():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.last = noisy(), None

        @property
        def norm(self):
            return self.net[0].weight.norm()

        def train_step(self, batch):
            self.last = self.net(batch).sum()
            return self.last

        def parts(self):
            for layer in self.net:
                yield layer.weight.sum() if hasattr(layer, "weight") else None

    model = Model()
    model.train_step(BATCH).backward()
    view = valid(model)
    assert not view.norm.requires_grad
    assert not view.last.requires_grad  # the model's attribute, without the graph that it hangs on
    assert model.last.requires_grad
    assert not view.train_step(BATCH).requires_grad
    assert not any(part is not None and part.requires_grad for part in view.parts())


def test_autocast_keeps_no_cast_that_lost_its_graph():
    model = nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        target = valid(model)(BATCH)
        loss = (model(BATCH) - target + 1).square().sum()
    loss.backward()
    assert model.weight.grad is not None


def test_a_loss_of_a_view_can_not_be_differentiated_and_the_error_says_why():
    model = nn.Linear(8, 8)
    with pytest.raises(stoker.NotDifferentiable, match=r"computed through stoker\.valid\(model\)"):
        stoker.backward(valid(model)(BATCH).sum(), model)


# --- hooks


def test_a_hook_that_collects_outputs_collects_those_of_the_view_too():
    model, outputs = noisy(), []
    model[0].register_forward_hook(lambda module, args, out: outputs.append(out))
    view = valid(model)
    model(BATCH)
    view(BATCH)
    assert [out.requires_grad for out in outputs] == [True, False]


# --- wrappers and compilers


@pytest.mark.parametrize("wrap", [lambda m: torch.compile(m, backend="eager"), nn.DataParallel], ids=["compile", "dp"])
def test_a_wrapped_model_is_viewed_without_its_wrapper(wrap):
    model = noisy()
    expected = evaluated(model)
    for wrapped in (wrap(model), nn.Sequential(wrap(model))):
        view = valid(wrapped.cpu())  # DataParallel moves a model to the GPU where there is one
        assert torch.equal(view(BATCH), expected)
        assert not any("module" in name or "_orig_mod" in name for name in view.state_dict())
        assert model.training
    assert type(valid(wrap(model))) is nn.Sequential


def test_compiled_calls_of_modules_are_not_used():
    model, traced = CASES["parametrized"].make(), []
    expected = evaluated(model)

    def backend(graph, inputs):
        traced.append(graph)
        return graph.forward

    for module in model.modules():
        module.compile(backend=backend)
    assert torch.equal(valid(model)(BATCH), expected)
    assert not traced


def test_compiled_methods_run_in_eval_mode():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = noisy()

        @torch.compile(backend="eager")
        def encode(self, x):
            return self.net(x) * (10 if self.training else 1)

        @torch.compile(backend="eager")
        def forward(self, x):
            return self.encode(x) + 1

    model = Model()
    view, before = valid(model), state(model)
    once = evaluated(model.net)
    assert torch.equal(view.encode(BATCH), once)
    assert torch.equal(view(BATCH), once + 1)
    assert same(state(model), before)
    model(BATCH)
    assert not same(state(model), before)


def test_compiled_code_that_calls_a_view_is_right():
    model = noisy()
    view, expected, before = valid(model), evaluated(model), state(model)

    def twice(x):
        return view(x) + view.forward(x), view.training

    for _ in range(2):
        got, training = torch.compile(twice, backend="eager")(BATCH)
        assert torch.equal(got, expected + expected)
        assert not training
    assert torch.equal(torch.compile(view, backend="eager")(BATCH), expected)
    assert same(state(model), before)


def test_functional_call_does_not_touch_the_model():
    model = noisy()
    parameters = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    assert (torch.func.functional_call(valid(model), parameters, (BATCH,)) == 0).all()
    assert model[0].weight.abs().sum() > 0


# --- copies, ends and refusals


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))])
def test_a_copy_of_a_view_is_an_ordinary_module_in_eval_mode(duplicate):
    model = noisy()
    view = valid(model)
    other = duplicate(view)
    assert torch.equal(other(BATCH), view(BATCH))
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(other(BATCH), view(BATCH))
    assert not other.training
    assert other.train().training
    other(BATCH)


def test_a_view_that_was_switched_to_training_is_refused():
    view = valid(noisy())
    view.train()
    text = r"a view is always in eval mode, and this Sequential was switched to training; train the model itself"
    with pytest.raises(InvalidArgument, match=text):
        view(BATCH)
    view.eval()
    view(BATCH)


def test_only_instances_of_modules_have_views():
    with pytest.raises(WrongType, match=r"valid\(\) takes an instance of torch.nn.Module; got function"):
        valid(F.relu)
    with pytest.raises(WrongType, match="got the class Linear"):
        valid(nn.Linear)


class WithoutMemo(nn.Linear):
    def __deepcopy__(self, memo):
        return WithoutMemo(8, 8)


def locked():
    model = noisy()
    model.lock = threading.Lock()
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("make_model", "text"),
    [
        (locked, r"Sequential \(cannot pickle '_thread.lock' object\)"),
        (
            lambda: nn.Sequential(torch.jit.trace(nn.Linear(8, 8), BATCH)),
            r"Sequential \(the training flag of a TorchScript module is part of its code\)",
        ),
        (lambda: nn.Sequential(WithoutMemo(8, 8)), r"Sequential \(a copy.deepcopy of it ignores the memo\)"),
    ],
    ids=["lock", "TorchScript", "own __deepcopy__"],
)
def test_a_model_that_can_not_be_copied_is_an_error_that_says_what_to_do(make_model, text):
    with pytest.raises(InvalidArgument, match=text + r"; call model\.eval\(\), compute under torch\.no_grad\(\), and"):
        valid(make_model())


def test_a_view_works_without_its_model():
    view = valid(make(CASES["sequential"]))
    assert torch.equal(view(BATCH), evaluated(make(CASES["sequential"])))


def test_a_view_that_is_dropped_is_freed_at_once_and_so_is_its_model():
    model = noisy()
    watched = [weakref.ref(model), weakref.ref(model[1])]
    gc.disable()  # so that only reference counts free anything
    try:
        view = valid(model)
        view(BATCH)
        watched.append(weakref.ref(view))
        del model, view
        assert [reference() for reference in watched] == [None, None, None]
    finally:
        gc.enable()
