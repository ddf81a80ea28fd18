"""Promise 2: any split of a batch gives the gradient of the batch."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import Accumulator, Gradients, GradientsConsumed, backward


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_any_split_of_a_batch_gives_the_gradient_of_the_batch(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=generator)
    model, accumulator = net(), Accumulator()
    for images, targets in zip(x.split(sizes), y.split(sizes), strict=True):
        accumulator.add(backward(F.cross_entropy(model(images), targets), model), weight=len(images))
    assert len(accumulator) == len(sizes)
    grads, whole = accumulator.take(), backward(F.cross_entropy(model(x), y), model)
    assert len(accumulator) == 0
    for name in whole:
        torch.testing.assert_close(grads[name], whole[name], rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=2, max_size=5))
def test_masked_tokens_weigh_as_tokens(lengths):
    """A micro-batch without a single token that counts has weight 0, and its NaN loss goes nowhere."""
    if sum(lengths) == 0:
        return
    torch.manual_seed(1)
    model, accumulator = net(), Accumulator()
    xs = [torch.randn(length, 4, dtype=torch.float64) for length in lengths]
    ys = [torch.randint(0, 3, (length,)) for length in lengths]
    for x, y in zip(xs, ys, strict=True):
        accumulator.add(backward(F.cross_entropy(model(x), y), model), weight=len(y))
    grads, whole = accumulator.take(), backward(F.cross_entropy(model(torch.cat(xs)), torch.cat(ys)), model)
    for name in whole:
        torch.testing.assert_close(grads[name], whole[name], rtol=1e-9, atol=1e-12)


def test_a_parameter_in_only_some_of_the_additions_counts_as_zero_in_the_others():
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    accumulator = Accumulator()
    accumulator.add(Gradients({"b.weight": torch.tensor([[6.0]])}, model), weight=1)
    accumulator.add(Gradients({"a.weight": torch.tensor([[4.0]])}, model), weight=3)
    grads = accumulator.take()
    assert list(grads) == ["a.weight", "b.weight"]  # the model's order, not the order of arrival
    assert grads["a.weight"].item() == 3.0 and grads["b.weight"].item() == 1.5


def test_16_bit_gradients_are_added_up_in_32_bits():
    """In bf16 256 + 1 is 256: a window of many micro-batches would lose what it adds."""
    model, accumulator = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16), Accumulator(reduce="sum")
    for _ in range(512):
        accumulator.add(Gradients({"weight": torch.ones(1, 1, dtype=torch.bfloat16)}, model))
    grads = accumulator.take()
    assert grads["weight"].item() == 512 and grads["weight"].dtype == torch.bfloat16


def test_adding_consumes_gradients_and_never_writes_to_them():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    mine = torch.tensor([[1.0]])
    grads = Gradients({"weight": mine}, model)
    accumulator.add(grads)
    accumulator.add(Gradients({"weight": torch.tensor([[5.0]])}, model))
    assert len(grads) == 0 and mine.item() == 1.0
    with pytest.raises(GradientsConsumed, match=r"by Accumulator.add"):
        grads.norm()
    assert accumulator.take()["weight"].item() == 3.0


def test_mistakes_raise_and_change_nothing():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    with pytest.raises(GradientsConsumed, match="the accumulator is empty: add gradients before taking them"):
        accumulator.take()
    with pytest.raises(stoker.InvalidArgument, match='reduce must be "mean" or "sum", got \'max\''):
        Accumulator(reduce="max")
    with pytest.raises(stoker.WrongType, match="add takes Gradients, got Tensor"):
        accumulator.add(torch.ones(1))
    grads = Gradients({"weight": torch.ones(1, 1)}, model)
    for weight in (-1, float("nan"), float("inf")):
        with pytest.raises(stoker.InvalidArgument, match="a weight is a number of at least 0, got"):
            accumulator.add(grads, weight=weight)
    assert len(grads) == 1 and len(accumulator) == 0
    accumulator.add(grads, weight=0)
    with pytest.raises(stoker.InvalidArgument, match="all 1 gradients in the accumulator had weight 0"):
        accumulator.take()
    other = nn.Linear(1, 1, bias=False)
    with pytest.raises(stoker.InvalidArgument, match="'weight' is a different parameter than before"):
        accumulator.add(Gradients({"weight": torch.ones(1, 1)}, other))


def test_additions_may_cover_different_parts_of_the_model():
    encoder, decoder, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2)
    both = {"decoder": decoder, "encoder": encoder}
    for first, second in ((both, {"encoder": encoder}), ({"encoder": encoder}, both)):
        accumulator = Accumulator()
        for models in (first, second):
            accumulator.add(backward(decoder(encoder(x)).sum(), models))
        grads, whole = accumulator.take(), backward(decoder(encoder(x)).sum(), both)
        assert list(grads) == list(whole)  # the order of the larger one
        assert torch.equal(grads["encoder.weight"], whole["encoder.weight"])
        assert torch.equal(grads["decoder.weight"], whole["decoder.weight"] / 2)
        assert list(grads.take(decoder)) == ["decoder.weight", "decoder.bias"]


def test_one_parameter_under_two_names_is_refused():
    layer, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    accumulator = Accumulator()
    accumulator.add(backward(layer(x).sum(), layer))
    grads = backward(layer(x).sum(), {"layer": layer})
    with pytest.raises(
        stoker.InvalidArgument,
        match="'weight' and 'layer.weight' are two names of one parameter: to add gradients, give",
    ):
        accumulator.add(grads)
    assert len(accumulator) == len(grads) == 1
    with pytest.raises(stoker.InvalidArgument, match="'weight' and 'layer.weight' are two names of one parameter"):
        backward(layer(x).sum(), layer) + grads


@pytest.mark.parametrize("sparse", [False, True])
def test_a_zero_weight_in_a_tensor_counts_as_nothing(sparse):
    table = nn.Embedding(3, 2, sparse=sparse)
    rows = torch.tensor([1, 1])
    for order in ((0.0, 2.0), (2.0, 0.0)):
        accumulator = Accumulator()
        for weight in order:
            loss = table(rows).sum() * (1.0 if weight else float("nan"))
            accumulator.add(backward(loss, table), weight=torch.tensor(weight))
        grad = accumulator.take()["weight"]
        assert torch.equal(grad.to_dense() if sparse else grad, torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]))


def test_a_weight_is_one_number():
    model, accumulator = nn.ParameterDict({"p": torch.ones(())}), Accumulator()
    grads = Gradients({"p": torch.tensor(3.0)}, model)
    with pytest.raises(stoker.InvalidArgument, match=r"a weight is one number, got a tensor of shape \[2\]"):
        accumulator.add(grads, weight=torch.ones(2))
    assert len(grads) == 1 and len(accumulator) == 0
    accumulator.add(grads, weight=torch.tensor([2]))
    assert torch.equal(accumulator.take()["p"], torch.tensor(3.0))  # no dimension gained


# --- memory: allocated once, so that a CUDA graph or a compiled step can write to it


def add(accumulator, model, weight, *names):
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if name in names}
    accumulator.add(Gradients({name: torch.full(shape, 2.0) for name, shape in shapes.items()}, model), weight)


@pytest.mark.parametrize("weight", [3, torch.tensor(3.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_sums_are_allocated_once_and_results_have_memory_of_their_own(weight, reduce):
    model, accumulator = nn.Linear(2, 2), Accumulator(reduce)
    results, memory = [], []
    for _ in range(3):
        for _ in range(2):
            add(accumulator, model, weight, "weight", "bias")
        memory.append([tensor.data_ptr() for tensor in accumulator.tensors()])
        results.append(accumulator.take())
        assert accumulator.weight == 0
    assert memory[0] == memory[1] == memory[2]
    assert len(memory[0]) == (3 if isinstance(weight, torch.Tensor) else 2)
    expected = torch.full((2, 2), 2.0 if reduce == "mean" else 12.0)
    assert all(torch.equal(grads["weight"], expected) for grads in results)
    assert not {tensor.data_ptr() for grads in results for tensor in grads.values()} & set(memory[0])


def test_sums_of_any_memory_format_are_allocated_once():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Linear(18, 1))
    model.to(memory_format=torch.channels_last)
    accumulator, memory = Accumulator(), []
    for _ in range(2):
        accumulator.add(backward(model(torch.randn(2, 1, 5, 5)).square().mean(), model), weight=2)
        memory.append([tensor.data_ptr() for tensor in accumulator.tensors()])
        assert all(tensor.stride() == model.get_parameter(name).stride() for name, tensor in accumulator.take().items())
    assert memory[0] == memory[1]


def test_a_sum_that_a_later_window_does_not_use_is_not_part_of_its_result():
    model, accumulator = nn.Linear(2, 2), Accumulator()
    add(accumulator, model, 1, "weight", "bias")
    accumulator.take()
    add(accumulator, model, 1, "bias")
    assert list(accumulator.take()) == ["bias"]
    add(accumulator, nn.Linear(2, 2), 1, "weight")  # another model may follow
    assert list(accumulator.take()) == ["weight"]


def test_reset_drops_what_was_added_and_keeps_the_memory():
    model, accumulator = nn.Linear(2, 2), Accumulator()
    add(accumulator, model, 5, "weight")
    before = accumulator.tensors()
    accumulator.reset()
    assert (len(accumulator), accumulator.weight) == (0, 0)
    add(accumulator, model, 1, "weight")
    assert accumulator.tensors()[0] is before[0]
    assert torch.equal(accumulator.take()["weight"], torch.full((2, 2), 2.0))


@pytest.mark.parametrize("weight", [3, torch.tensor(3.0)], ids=["number", "tensor"])
def test_a_replayed_addition_is_an_addition_with_its_bookkeeping(weight):
    """An executor records an addition once, and replays only what it does to tensors."""
    model, accumulator, reference = nn.Linear(2, 2), Accumulator(), Accumulator()
    for each in (accumulator, reference):
        add(each, model, weight, "weight")
        add(each, model, weight, "weight")
    add(reference, model, weight, "weight")
    sums, *weights = accumulator.tensors()
    sums.add_(6.0)
    count, number, names = accumulator.bookkeeping
    assert (count, number, names) == (2, None if weights else 6, frozenset({"weight"}))
    for total in weights:
        total.add_(3.0)
    accumulator.set_bookkeeping(3, None if number is None else number + 3, names)
    assert (len(accumulator), accumulator.weight) == (3, reference.weight)
    assert torch.equal(accumulator.take()["weight"], reference.take()["weight"])


def test_references_undo_what_an_addition_has_changed_in_python():
    model, accumulator = nn.Linear(2, 2), Accumulator()
    add(accumulator, model, torch.tensor(1.0), "weight")
    before, tensors = accumulator.references(), accumulator.tensors()
    add(accumulator, model, torch.tensor(1.0), "bias")
    accumulator.restore_references(before)
    assert accumulator.bookkeeping == (1, None, frozenset({"weight"}))
    assert [id(tensor) for tensor in accumulator.tensors()] == [id(tensor) for tensor in tensors]


def test_an_empty_accumulator_saves_which_parameters_have_memory():
    model, accumulator, other = nn.Linear(2, 2), Accumulator(), Accumulator()
    add(accumulator, model, 1, "weight")
    accumulator.take()
    state = accumulator.state_dict()
    assert (state["count"], state["parameters"], state["sums"]) == (0, ["weight"], {})
    other.load_state_dict(state, model)
    assert [tensor.shape for tensor in other.tensors()] == [(2, 2)]
    with pytest.raises(GradientsConsumed, match="the accumulator is empty"):
        other.take()


# --- saving


def as_read_from_a_file(state):
    """As read from a file: plain values, and contiguous tensors with memory of their own."""
    copied = {}
    for name, parts in state["sums"].items():
        values = {key: each.contiguous().clone() for key, each in parts.items() if isinstance(each, torch.Tensor)}
        copied[name] = {**parts, **values}
    weight = state["weight"]
    return {**state, "sums": copied, "weight": weight.clone() if isinstance(weight, torch.Tensor) else weight}


def bits(grads):
    dense = {name: (each.to_dense() if each.is_sparse else each) for name, each in grads.items()}
    return {name: (each.dtype, each.flatten().view(torch.uint8).tolist()) for name, each in dense.items()}


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0, 1, 3, 0.7, torch.tensor(2.5), torch.tensor(0)]), min_size=1, max_size=7),
    place=st.integers(0, 7),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    reduce=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 99),
)
def test_a_window_continues_to_the_same_bits_wherever_it_was_saved(weights, place, dtype, reduce, seed):
    generator = torch.Generator().manual_seed(seed)
    model, whole, first = nn.Linear(4, 3, dtype=dtype), Accumulator(reduce), Accumulator(reduce)
    parts = []
    for weight in (*weights, 1):
        names = [name for name in ("weight", "bias") if torch.rand((), generator=generator) < 0.8] or ["bias"]
        shapes = {name: dict(model.named_parameters())[name].shape for name in names}
        parts.append(({name: torch.randn(shapes[name], generator=generator).to(dtype) for name in names}, weight))
    for number, (tensors, weight) in enumerate(parts):
        if number == min(place, len(weights)):
            other = nn.Linear(4, 3, dtype=dtype)  # another process creates the model again
            state, first = as_read_from_a_file(first.state_dict()), Accumulator(reduce)
            first.load_state_dict(state, other)
            assert len(first) == number
            model_now = other
        elif number == 0:
            model_now = model
        whole.add(Gradients({name: each.clone() for name, each in tensors.items()}, model), weight)
        first.add(Gradients({name: each.clone() for name, each in tensors.items()}, model_now), weight)
    a, b = whole.take(), first.take()
    assert list(a) == list(b) and bits(a) == bits(b)


@pytest.mark.parametrize("place", [1, 2])
def test_sparse_sums_are_saved_as_they_are(place):
    """A sum of sparse gradients is not coalesced: its entries are added up later, in this order."""
    rows, weights = [torch.tensor([1, 1, 4]), torch.tensor([0, 4]), torch.tensor([4, 1])], torch.randn(5, 2)

    def grads(table, chosen):
        return backward((table(chosen) * weights[chosen]).sum(), table)

    table, other = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)
    whole, half, again = Accumulator(), Accumulator(), Accumulator()
    for number, chosen in enumerate(rows):
        if number < place:
            half.add(grads(table, chosen), weight=3)
        whole.add(grads(table, chosen), weight=3)
    state = as_read_from_a_file(half.state_dict())
    again.load_state_dict(state, other)
    assert again.state_dict()["sums"]["weight"]["coalesced"] == state["sums"]["weight"]["coalesced"]
    for chosen in rows[place:]:
        again.add(grads(other, chosen), weight=3)
    a, b = whole.take()["weight"], again.take()["weight"]
    assert b.is_sparse and torch.equal(a._indices(), b._indices()) and torch.equal(a._values(), b._values())


def test_sums_keep_the_order_of_their_memory():
    """A norm adds up in the order of memory, and so its last bit depends on it."""
    model, differing = nn.Conv2d(24, 32, 3, bias=False), 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        tensor = torch.randn(32, 24, 3, 3, generator=generator).to(memory_format=torch.channels_last)
        accumulator, other = Accumulator(), Accumulator()
        accumulator.add(Gradients({"weight": tensor}, model))
        other.load_state_dict(as_read_from_a_file(accumulator.state_dict()), model)
        a, b = accumulator.take(), other.take()
        assert a["weight"].stride() == b["weight"].stride() == tensor.stride()
        assert torch.equal(a.norm(), b.norm()) and torch.equal(a["weight"], b["weight"])
        differing += not torch.equal(Gradients({"weight": tensor.contiguous()}, model).norm(), a.norm())
    assert differing, "the norm no longer depends on it; this test can be removed"


def test_state_dict_returns_references_and_loading_copies():
    model, accumulator, other = nn.Linear(1, 1, bias=False), Accumulator(), Accumulator()
    accumulator.add(Gradients({"weight": torch.tensor([[1.0]])}, model), weight=torch.tensor(1.0))
    other.load_state_dict(accumulator.state_dict(), model)
    accumulator.add(Gradients({"weight": torch.tensor([[5.0]])}, model), weight=torch.tensor(1.0))
    assert other.take()["weight"].item() == 1.0 and accumulator.take()["weight"].item() == 3.0


def test_what_does_not_fit_is_listed_and_changes_nothing():
    model, accumulator = nn.Linear(2, 1), Accumulator()
    accumulator.add(backward(model(torch.ones(1, 2)).sum(), model))
    state = accumulator.state_dict()
    fresh, other = Accumulator("sum"), nn.ModuleDict({"weigth": nn.Linear(3, 1)})
    with pytest.raises(stoker.StateMismatch) as error:
        fresh.load_state_dict(state, other)
    assert str(error.value).split("\n  ") == [
        "this state of an Accumulator does not match",
        "its reduce is 'mean', here it is 'sum'",
        "weight: not in the model; did you mean 'weigth.weight'?",
        "bias: not in the model",
    ]
    with pytest.raises(stoker.StateMismatch, match=r"weight: shape \[1, 2\] in the state, \[1, 3\] in the model"):
        fresh.load_state_dict({**state, "reduce": "sum"}, nn.Linear(3, 1))
    assert len(fresh) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("count"),
        lambda state: state.update(count=-1),
        lambda state: state.update(weight="much"),
        lambda state: state.update(sums=[]),
        lambda state: state.update(sums={"weight": 3}),
        lambda state: state.update(sums={"weight": {"values": torch.ones(1, 2), "order": [0]}}),
        lambda state: state.update(sums={"weight": {"values": torch.ones(1, 2), "order": [0, 0]}}),
        lambda state: state.update(
            sums={"weight": {"values": torch.ones(1), "indices": torch.tensor([[9], [0]]), "coalesced": True}}
        ),
        lambda state: state.update(sums={"strange": {"values": torch.ones(1, 2), "order": [0, 1]}}),
    ],
    ids=["missing", "count", "weight", "list", "number", "order", "twice", "outside", "strange"],
)
def test_what_is_no_state_is_refused(change):
    model, accumulator, other = nn.Linear(2, 1), Accumulator(), Accumulator()
    accumulator.add(backward(model(torch.ones(1, 2)).sum(), model))
    state = accumulator.state_dict()
    change(state)
    with pytest.raises(stoker.StateMismatch):
        other.load_state_dict(state, model)
    assert len(other) == 0
