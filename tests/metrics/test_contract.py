"""What every metric guarantees: see `cases.py` for the list."""

import math
from dataclasses import fields, is_dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from stoker import ConfigError, metrics
from stoker.metrics import Metric, flatten_value
from stoker.steps import SequenceOutput
from tests.metrics.cases import CASES, CPU, value

EACH = pytest.mark.parametrize(
    ("metric", "make"), CASES, ids=[f"{metric.name}-{make.__name__}" for metric, make in CASES]
)
STATIC = pytest.mark.parametrize(
    ("metric", "make"),
    [case for case in CASES if case[0].static],
    ids=[f"{metric.name}-{make.__name__}" for metric, make in CASES if metric.static],
)


def same(a, b):
    a, b = flatten_value("x", a), flatten_value("x", b)
    return a.keys() == b.keys() and all(
        (math.isnan(a[name]) and math.isnan(b[name])) or math.isclose(a[name], b[name], rel_tol=1e-9, abs_tol=1e-9)
        for name in a
    )


@EACH
@settings(max_examples=8)
@given(
    cuts=st.lists(st.integers(0, 24), max_size=5), seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False)
)
def test_the_value_does_not_depend_on_batches_or_the_order_of_merging(metric, make, cuts, seed, order):
    output = make(torch.Generator().manual_seed(seed), 24)
    whole = value(metric, output(slice(None)))
    edges = [0, *sorted(cuts), 24]  # some batches are empty
    batches = [output(slice(a, b)) for a, b in pairwise(edges)]
    assert same(value(metric, *batches), whole)

    shards = [metric.update(metric.init(CPU), batch) for batch in batches]
    order.shuffle(shards)
    while len(shards) > 1:
        shards.insert(order.randrange(len(shards) - 1), metric.merge(shards.pop(), shards.pop()))
    assert same(metric.compute(shards[0]), whole)
    assert same(metric.compute(metric.merge(metric.init(CPU), shards[0])), whole)


@EACH
def test_update_does_not_change_the_given_state(metric, make):
    output = make(torch.Generator().manual_seed(0), 8)
    state = metric.update(metric.init(CPU), output(slice(0, 4)))
    before = {name: each.clone() for name, each in state.items()}
    metric.update(state, output(slice(4, 8)))
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


@EACH
def test_the_value_of_nothing_is_nan_or_an_empty_list(metric, make):
    output = make(torch.Generator().manual_seed(0), 4)
    for got in (metric.compute(metric.init(CPU)), value(metric, output(slice(0, 0)))):
        if isinstance(got, float):
            assert math.isnan(got)
        else:
            assert all(number == 0 for number in flatten_value("x", got).values())


@EACH
def test_update_reads_no_value_on_the_host(metric, make):
    # Fake tensors have no values: reading one raises.
    with FakeTensorMode():
        output = make(None, 8) if make.__name__ != "tokens" else None
        if output is None:  # computing its loss would select by a mask
            logits, targets = torch.randn(8, 5, 6), torch.zeros(8, 5, dtype=torch.long)
            batch = SequenceOutput(torch.zeros(()), logits, targets, torch.ones(8, 5, dtype=torch.bool))
        else:
            batch = output(slice(None))
        state = metric.init(CPU)
        for _ in range(3):
            state = metric.update(state, batch)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # from torch 2.11's compiler
@STATIC
def test_update_is_one_graph_and_shapes_stay_after_the_first(metric, make):
    torch._dynamo.reset()
    output = make(torch.Generator().manual_seed(0), 16)
    graph = torch.compile(metric.update, fullgraph=True, backend="eager")
    state = metric.update(metric.init(CPU), output(slice(0, 8)))
    traced = graph(state, output(slice(8, 16)))
    assert {name: each.shape for name, each in state.items()} == {name: each.shape for name, each in traced.items()}
    assert same(metric.compute(traced), value(metric, output(slice(None))))


def on_gpu(output):
    names = [each.name for each in fields(output)] if is_dataclass(output) else vars(output)
    held = {name: getattr(output, name) for name in names}
    return type(output)(**{name: each if each is None else each.cuda() for name, each in held.items()})


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@EACH
def test_update_on_a_gpu_does_not_wait_for_it(metric, make):
    output = make(torch.Generator().manual_seed(0), 8)(slice(None))
    moved = on_gpu(output)
    torch.cuda.set_sync_debug_mode("error")
    try:
        state = metric.update(metric.init(torch.device("cuda")), moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    got, expected = flatten_value("x", metric.compute(state)), flatten_value("x", value(metric, output))
    assert got == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_every_exported_metric_is_tested_here():
    exported = {each for each in vars(metrics).values() if isinstance(each, type) and issubclass(each, Metric)}
    assert exported - {Metric} <= {type(metric) for metric, _ in CASES}


def test_metrics_declare_their_direction():
    better = {metric.name: metric.direction for metric, _ in CASES}
    assert {name for name, each in better.items() if each == "min"} == {
        "loss", "hamming", "mae", "mse", "rmse", "perplexity", "cer", "wer"
    }  # fmt: skip
    assert {name for name, each in better.items() if each is None} == {"confusion", "absolute"}


def test_default_names_follow_the_settings():
    assert metrics.TopKAccuracy(5).replace(k=3).name == "top3_accuracy"
    assert metrics.TopKAccuracy(5, name="top").replace(k=3).name == "top"
    assert metrics.Accuracy(on="valid").on == "valid"
    with pytest.raises(ConfigError, match='on: expected "train" | "valid" | "both", got "test"'):
        metrics.Accuracy(on="test")  # pyright: ignore


def test_nested_values_are_flattened_with_names():
    assert flatten_value("valid/iou", {"cat": 0.5}) == {"valid/iou/cat": 0.5}
    assert flatten_value("confusion", [[1.0, 0.0], [2.0, 3.0]])["confusion/1/0"] == 2.0
