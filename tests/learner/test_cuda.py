"""The Learner on a GPU: the model moves there and back, and results match, in every precision."""

import copy

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule

pytestmark = pytest.mark.cuda


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def samples(n=512):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator)
    return x, (x[:, :3] + 0.1 * x[:, 3:6]).argmax(1)


def learner(model, **settings):
    return stoker.Learner(
        model,
        loss=nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 1.0])),
        metrics=[metrics.Accuracy()],
        seed=0,
        **{"lr": 1e-2, **settings},
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_the_model_trains_on_the_gpu_and_returns(precision):
    model = net()
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    fitted = learner(model, precision=precision, ema=0.9, clip_norm=1.0, accumulate=2).fit(
        samples(), valid=0.25, epochs=15, batch_size=32, show=False
    )
    assert fitted.model is model and all(p.device.type == "cpu" for p in model.parameters())
    assert fitted.history["valid/accuracy"][-1] > 0.8
    scores = fitted.evaluate(samples())
    predictions = fitted.predict(samples())
    assert predictions.device.type == "cpu" and predictions.shape == (512, 3)
    accuracy = (predictions.float().argmax(1) == samples()[1]).double().mean().item()
    assert scores["accuracy"] == pytest.approx(accuracy, abs=0.02 if precision != "fp32" else 1e-9)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_fit_equals_a_loop_by_hand():
    """Bit for bit, with dropout. Like `fit`, the loop passes the learning rate as a tensor on the device."""
    x, y = samples()
    ours, theirs = net(), net()
    stoker.Learner(
        ours, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW(), lr=1e-2, clip_norm=0.5, seed=3, device="cuda"
    ).fit((x, y), updates=100, batch_size=32, show=False)
    torch.manual_seed(3)
    theirs.cuda()
    optimizer = optim.AdamW(fused=True).init(theirs)
    loader, done = data.Loader((x, y), batch_size=32, shuffle=3, device="cuda"), 0
    rate = torch.tensor(1e-2, device="cuda")
    while done < 100:
        for inputs, targets in loader:
            grads = stoker.backward(nn.CrossEntropyLoss()(theirs(inputs), targets), theirs)
            optimizer.step(grads.clip_norm(0.5), lr=rate)
            done += 1
            if done == 100:
                break
    for name, value in theirs.cpu().state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


def test_the_history_is_that_of_the_cpu():
    def fit(device):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        counted = [metrics.Accuracy(), metrics.GradientNorm()]
        own = stoker.Learner(model, loss=nn.CrossEntropyLoss(), metrics=counted, lr=1e-2, seed=0, device=device)
        columns = own.fit(samples(), valid=samples(), epochs=4, batch_size=48, show=False).history.to_dict()
        return {name: values for name, values in columns.items() if "/" in name or name == "gradient_norm"}

    on_gpu, on_cpu = fit("cuda"), fit("cpu")
    assert {"train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "gradient_norm"} <= set(on_cpu)
    for name, values in on_cpu.items():
        assert on_gpu[name] == pytest.approx(values, rel=1e-4), name


def test_nan_is_caught_and_data_are_moved_to_the_gpu():
    x, y = samples()
    bad = x.clone()
    bad[40] = float("nan")
    model = net()
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(stoker.NotFinite, match="already holds NaN or infinity"):
        learner(model).fit((bad.cuda(), y.cuda()), epochs=1, batch_size=512, show=False)
    assert torch.equal(model.cpu()[0].weight, weights["0.weight"])
    seen = []
    watch = callbacks.on(train_batch_end=lambda ctx: seen.append(ctx.batch[0].device.type))
    learner(net()).fit((x, y), epochs=1, batch_size=256, callbacks=[watch], show=False)
    assert seen == ["cuda", "cuda"]


def test_the_error_of_a_batch_on_a_gpu_describes_it_without_reading_it():
    x, y = samples()
    with pytest.raises(RuntimeError) as caught:
        learner(net(), device="cuda").fit((x[:, :5], y), epochs=1, batch_size=32, show=False)
    text = "in epoch 1, batch 1 of 'train', (float32 [32, 5], int64 [32]): the inputs have another width"
    assert caught.value.__notes__[-1].startswith(text)


@pytest.mark.parametrize("monitor", ["valid/accuracy", "train/loss"])
def test_the_best_weights_of_a_captured_step_are_those_of_the_monitored_metric(monitor):
    seen = []

    def copy_weights(ctx):
        weights = {name: value.cpu() for name, value in ctx.model.state_dict().items()}
        seen.append((ctx.metrics[monitor], weights))

    watch = callbacks.on(**{"train_end" if monitor.startswith("train/") else "validation": copy_weights})
    given = learner(net(), lr=schedule.one_cycle(0.3))  # large enough to get worse in between
    fitted = given.fit(samples(), valid=0.2, epochs=6, monitor=monitor, callbacks=[watch], show=False)
    choose = min if monitor == "train/loss" else max
    value, weights = choose(seen, key=lambda each: each[0])
    assert fitted.best.value == value and "graph" in "\n".join(fitted.plan)
    assert all(torch.equal(value, weights[name]) for name, value in fitted.model.state_dict().items())


def test_metrics_of_captured_steps_read_the_labels_of_the_model():
    """In a graph, and outside of it for a metric that is not static: the values of an eager step on the CPU."""
    import torchmetrics

    from tests.learner.test_forward_metrics import ROWS, Tokens

    def run(device):
        torch.manual_seed(0)
        tokens = torchmetrics.classification.MulticlassAccuracy(7, average="micro")
        given = [metrics.Accuracy(), metrics.Perplexity(), tokens]
        own = stoker.Learner(Tokens(shift=True), metrics=given, lr=0.0, seed=0, device=device)
        return own.fit(ROWS, valid=ROWS, epochs=3, batch_size=5, show=False)

    host, captured = run("cpu"), run("cuda")
    assert any("CUDA graph" in line for line in captured.plan), captured.plan
    for name in host.history.columns:
        assert captured.history[name] == pytest.approx(host.history[name], rel=1e-4), name
