"""The seeds "Custom Training Loops" (Burn, in English and in Chinese), feature by feature, on drawn digits."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, ClassificationOutput, data, metrics, optim


class ModelConfig(stoker.Config):
    num_classes: int
    hidden_size: int

    def init(self):
        return Model(self)


class DigitsConfig(stoker.Config):
    model: ModelConfig
    optimizer: optim.Adam
    epochs: int = 2
    batch_size: int = 64
    workers: int = 0
    seed: int = 42
    lr: float = 3e-3


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, stride=3), nn.Conv2d(4, 8, 3, stride=3)
        self.dropout = nn.Dropout(0.1)
        self.linear1 = nn.Linear(72, config.hidden_size)
        self.linear2 = nn.Linear(config.hidden_size, config.num_classes)

    def forward(self, images):
        x = F.relu(self.conv2(F.relu(self.conv1(images[:, None]))))
        return self.linear2(self.dropout(F.relu(self.linear1(x.flatten(1)))))


CONFIG = DigitsConfig(ModelConfig(num_classes=10, hidden_size=32), optim.Adam())


def batcher(items):
    return torch.stack([image for image, _ in items]).float() / 255, torch.tensor([label for _, label in items])


def loaders(config=CONFIG):
    return [
        data.Loader(
            data.digits(part, size=size),
            batch_size=config.batch_size,
            shuffle=config.seed,
            workers=config.workers,
            batcher=batcher,
        )
        for part, size in (("train", 640), ("test", 160))
    ]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return CONFIG.model.init()


@pytest.fixture
def batch():
    return next(iter(loaders()[0]))


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


# "Now, let's move forward and write our own training loop": config, loaders, epochs from 1, training, validation.
def test_the_loop_of_the_seed_trains_digits(capsys):
    config = CONFIG
    torch.manual_seed(config.seed)
    model, optimizer = config.model.init(), config.optimizer
    optimizer = optimizer.init(model)
    train, test = loaders(config)
    for epoch in range(1, 7):
        for number, (images, targets) in enumerate(train):
            output = model(images)
            loss = F.cross_entropy(output, targets)
            accuracy = (output.argmax(1) == targets).float().mean()
            if number % 5 == 0:
                print(f"[Train - Epoch {epoch} - Batch {number}] Loss {loss:.3f} | Accuracy {100 * accuracy:.3f} %")
            grads = stoker.backward(loss, model)
            optimizer.step(grads, lr=config.lr)
        judge = stoker.valid(model)
        right = sum((judge(images).argmax(1) == targets).sum().item() for images, targets in test)
        print(f"[Valid - Epoch {epoch}] Accuracy {right / 160}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[Train - Epoch 1 - Batch 0] Loss 2.3") and len(lines) == 6 * 3
    assert right / 160 > 0.6


# "As seen with the previous example, setting up the configurations and the dataloader hasn't changed": and the result
# is the Learner's, bit for bit.
def test_the_own_loop_is_the_learners_loop():
    config = CONFIG

    def made():
        torch.manual_seed(config.seed)
        return config.model.init()

    fitted = stoker.Learner(
        made(), loss=F.cross_entropy, optimizer=config.optimizer.replace(fused=False), lr=config.lr, seed=7
    ).fit(loaders()[0], epochs=2, keep="last", show=False)
    own = made()
    optimizer = config.optimizer.replace(fused=False).init(own)
    torch.manual_seed(7)
    train = loaders()[0]
    for _ in range(2):
        for images, targets in train:
            optimizer.step(stoker.backward(F.cross_entropy(own(images), targets), own), lr=config.lr)
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), fitted.model.parameters(), strict=True))


# "accuracy(output, batch.targets)": the metrics of the library, in a loop of one's own.
def test_metrics_work_in_a_loop_of_ones_own(model):
    metric, right, count = metrics.Accuracy(), 0, 0
    state = metric.init(torch.device("cpu"))
    for images, targets in loaders()[1]:
        logits = stoker.valid(model)(images)
        state = metric.update(state, ClassificationOutput(F.cross_entropy(logits, targets), logits, targets))
        right, count = right + (logits.argmax(1) == targets).sum().item(), count + len(targets)
    assert metric.compute(state) == right / count


# "We can invoke the backward() function, which returns the gradients specific to each variable", mapped to parameters.
def test_backward_returns_the_gradients_by_parameter(model, batch):
    grads = stoker.backward(loss_of(model, batch), model)
    assert set(grads) == {name for name, _ in model.named_parameters()}
    assert grads[model.conv1.weight] is grads["conv1.weight"]
    assert all(parameter.grad is None for parameter in model.parameters())


# "You might run multiple different autodiff graphs and accumulate gradients for each parameter id".
def test_gradients_of_several_graphs_add_up_by_parameter(model, batch):
    model.eval()
    both = stoker.backward(loss_of(model, batch) + 2 * model(batch[0]).square().mean(), model)
    added = stoker.backward(loss_of(model, batch), model) + stoker.backward(2 * model(batch[0]).square().mean(), model)
    for name in both:
        torch.testing.assert_close(added[name], both[name])


# "There's no need to register the gradients with the optimizer, nor do you have to call zero_grad".
def test_the_step_consumes_the_gradients(model, batch):
    optimizer = optim.Adam().init(model)
    grads = stoker.backward(loss_of(model, batch), model)
    optimizer.step(grads, lr=1e-3)
    assert len(grads) == 0
    with pytest.raises(stoker.GradientsConsumed):
        optimizer.step(grads, lr=1e-3)


# "The optimization step using the learning rate, the model, and the computed gradients".
def test_the_learning_rate_is_an_argument_of_the_step(model, batch):
    optimizer, before = optim.SGD().init(model), model.linear2.weight.clone()
    optimizer.step(stoker.backward(loss_of(model, batch), model), lr=0.0)
    assert torch.equal(model.linear2.weight, before)
    grads = stoker.backward(loss_of(model, batch), model)
    slope = grads["linear2.weight"].clone()
    optimizer.step(grads, lr=0.5)
    torch.testing.assert_close(model.linear2.weight, before - 0.5 * slope)


# `GradientsAccumulator`: accumulate, then pop.
def test_the_accumulator_pops_the_gradient_of_the_whole_batch(model, batch):
    model.eval()
    accumulator, (images, targets) = Accumulator(), batch
    for part in zip(images.split(24), targets.split(24), strict=True):  # 24, 24, 16
        accumulator.add(stoker.backward(loss_of(model, part), model), weight=len(part[0]))
    popped, whole = accumulator.take(), stoker.backward(loss_of(model, batch), model)
    for name in whole:
        torch.testing.assert_close(popped[name], whole[name], rtol=1e-5, atol=1e-7)
    assert len(accumulator) == 0


# "To disable gradient tracking during this validation step, we can invoke model.valid()".
def test_valid_gives_the_model_without_autograd_and_leaves_the_model_alone(model, batch):
    judge = stoker.valid(model)
    assert torch.equal(judge(batch[0]), judge(batch[0]))  # no dropout
    assert not judge(batch[0]).requires_grad and model.training and not judge.training


# "Not using model.valid() will result in a compilation error": here, in an error that says so.
def test_a_validation_loss_cannot_be_differentiated(model, batch):
    with pytest.raises(stoker.NotDifferentiable, match="valid"):
        stoker.backward(loss_of(stoker.valid(model), batch), model)


# "Multiple optimizers": from_module, from_params, and what remains.
def test_parts_of_the_gradients_are_taken_out_and_stepped_each_its_own_way(model, batch):
    model.eval()
    lr, before = 1e-2, {name: each.detach().clone() for name, each in model.named_parameters()}
    expected = {name: each.clone() for name, each in stoker.backward(loss_of(model, batch), model).items()}
    grads, sgd = stoker.backward(loss_of(model, batch), model), optim.SGD().init(model)
    conv1, conv2 = grads.take(model.conv1), grads.take(model.conv2)
    sgd.step(conv1, lr=2 * lr)
    sgd.step(conv2, lr=4 * lr)
    sgd.step(grads.take(model.linear1.bias), lr=0.1 * lr)
    assert set(grads) == {"linear1.weight", "linear2.weight", "linear2.bias"}  # the calls above have removed theirs
    sgd.step(grads, lr=lr)
    for name, parameter in model.named_parameters():
        factor = {"conv1": 2, "conv2": 4}.get(name.split(".")[0], 0.1 if name == "linear1.bias" else 1)
        torch.testing.assert_close(parameter, before[name] - factor * lr * expected[name])


# "You could also use an entirely different optimizer here!"
def test_different_optimizers_step_different_parts(model, batch):
    adam, sgd = optim.Adam().init(model), optim.SGD(momentum=0.9).init(model)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    grads = stoker.backward(loss_of(model, batch), model)
    adam.step(grads.take("conv*"), lr=1e-3)
    sgd.step(grads, lr=1e-2)
    assert all(not torch.equal(each, before[name]) for name, each in model.named_parameters())
    moved = (model.conv1.weight - before["conv1.weight"]).abs()
    torch.testing.assert_close(moved.max(), torch.tensor(1e-3), rtol=1e-3, atol=0)  # Adam's first step is lr


# The same inside fit: "different learning rates, optimizer parameters, or different optimizers entirely".
def test_fit_takes_optimizers_and_learning_rates_by_part(model):
    learner = stoker.Learner(
        model,
        loss=F.cross_entropy,
        optimizer={"conv*": optim.Adam(), "*": optim.SGD(momentum=0.9)},
        lr={"conv1": 2e-3, "conv2": 4e-3, "*.bias": 1e-3, "*": 1e-2},
        seed=0,
    )
    assert len(learner.fit(loaders()[0], epochs=1, show=False).history) == 1
    told = learner.explain(loaders()[0], epochs=1)
    assert "SGD" in told and "Adam" in told and "0.004" in told


# "Custom Type": the model and the optimizer grouped into one structure, generic over both.
def test_model_and_optimizer_may_be_grouped_in_a_type_of_ones_own(model, batch):
    m = TypeVar("m", bound=nn.Module)

    @dataclass
    class Own(Generic[m]):
        model: m
        optimizer: optim.Optimizer

        def step(self, batch, lr):
            loss = loss_of(self.model, batch)
            self.optimizer.step(stoker.backward(loss, self.model), lr=lr)
            return loss.item()

    own = Own(model.eval(), optim.Adam().init(model))
    first = own.step(batch, 1e-2)
    assert [own.step(batch, 1e-2) for _ in range(5)][-1] < first
