"""The seed "Training" (the page on PyTorch: gradients, optimizers, modes, update cycles), feature by feature."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stoker
from stoker import callbacks, metrics, optim


class FFNN(nn.Module):
    def __init__(self, input_size, num_hidden_layers, hidden_size, output_size, dropout):
        super().__init__()
        layers = []
        for _ in range(num_hidden_layers):
            layers += [nn.Linear(input_size, hidden_size), nn.ReLU()]
            if dropout is not None:
                layers.append(nn.Dropout(dropout))
            input_size = hidden_size
        self.ffnn = nn.Sequential(*layers, nn.Linear(input_size, output_size))

    def forward(self, x):
        return self.ffnn(x)


class SimpleDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def loss_fn(output, label):
    return torch.mean((label - output) ** 2, dim=0)  # of shape [1], as the seed has it


LABELS = [torch.tensor([x], dtype=torch.float32) for x in range(1, 64)]  # 63: the last batch of 8 is short
EXAMPLES = [torch.cat([torch.tensor([0.0]), torch.log(x), x * 5]) for x in LABELS]
DATASET = SimpleDataset(list(zip(EXAMPLES, LABELS, strict=True)))


def simple_model():
    torch.manual_seed(42)
    model = FFNN(3, 2, 5, 1, None)
    for tensor in model.parameters():
        nn.init.uniform_(tensor)
    return model


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.base, self.classifier = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.base(x).relu())


GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 6, generator=GENERATOR), torch.randint(0, 3, (48,), generator=GENERATOR)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def by_hand(model, optimizer, *, epochs, batch_size=16):
    model.train()
    for _ in range(epochs):
        for x, y in zip(X.split(batch_size), Y.split(batch_size), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def fit(model, *, epochs, **settings):
    """On the samples in their order, as the loop by hand has them."""
    loader = DataLoader(SimpleDataset(list(zip(X, Y, strict=True))), batch_size=16)
    return stoker.Learner(model, loss=nn.CrossEntropyLoss(), seed=0, **settings).fit(loader, epochs=epochs, show=False)


# "The computed gradients accumulate in each tensor's grad; mind to clear it": here there is nothing to clear.
def test_gradients_do_not_pile_up():
    model = Parts()
    fit(model, epochs=2, optimizer=optim.SGD(), lr=0.1)
    assert all(parameter.grad is None for parameter in model.parameters())
    once, again = (stoker.backward(nn.functional.cross_entropy(model(X), Y), model) for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


# A gradient that the user has put into .grad is the user's own: fit neither uses nor clears it.
def test_what_is_in_grad_already_is_left_alone():
    model, control = Parts(), Parts()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    fit(model, epochs=1, optimizer=optim.SGD(), lr=0.1)
    fit(control, epochs=1, optimizer=optim.SGD(), lr=0.1)
    assert same(model, control) and all(bool((each.grad == 1e3).all()) for each in model.parameters())


# "optim.SGD(model.parameters(), lr=0.01, momentum=0.9)": every learnable parameter, and torch's own arithmetic.
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optim.SGD(momentum=0.9, fused=False), lambda each: torch.optim.SGD(each, lr=0.01, momentum=0.9)),
        (optim.Adam(fused=False), lambda each: torch.optim.Adam(each, lr=0.01)),
        (optim.AdamW(fused=False), lambda each: torch.optim.AdamW(each, lr=0.01)),
        (optim.RMSprop(), lambda each: torch.optim.RMSprop(each, lr=0.01)),
        (optim.wrap(torch.optim.SGD, momentum=0.9), lambda each: torch.optim.SGD(each, lr=0.01, momentum=0.9)),
    ],
    ids=["SGD", "Adam", "AdamW", "RMSprop", "wrapped"],
)
def test_an_optimizer_steps_all_parameters_as_torch_does(ours, theirs):
    fitted, hand = fit(Parts(), epochs=3, optimizer=ours, lr=0.01), Parts()
    assert same(fitted.model, by_hand(hand, theirs(hand.parameters()), epochs=3))


# "optim.Adam([var1, var2], lr=0.0001)": some variables only.
def test_an_optimizer_for_some_variables_only():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.var1, self.var2, self.other = (nn.Parameter(torch.ones(6)) for _ in range(3))

        def forward(self, x):
            return (x * self.var1 * self.other).sum(1) + (x * self.var2).sum(1)

    model, hand = Two(), Two()
    optimizer = optim.Adam(fused=False).init(model)
    native = torch.optim.Adam([hand.var1, hand.var2], lr=0.0001)
    for _ in range(3):
        grads = stoker.backward(model(X).square().mean(), model)
        optimizer.step(grads.take([model.var1, model.var2]), lr=0.0001)
        native.zero_grad()
        hand(X).square().mean().backward()
        native.step()
    assert same(model, hand) and torch.equal(model.other, torch.ones(6))
    stoker.freeze(model, "other")  # inside fit: what is frozen is not trained
    learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.Adam(), lr=1e-2, seed=0)
    learner.fit((X, Y.float()), epochs=1, show=False)
    assert torch.equal(model.other, torch.ones(6)) and not torch.equal(model.var1, hand.var1)


# "base uses a learning rate of 1e-2, and classifier one of 1e-3": hyper-parameters by part.
def test_parts_of_the_model_have_learning_rates_of_their_own():
    settings = {"optimizer": optim.SGD(momentum=0.9, fused=False), "lr": {"classifier": 1e-3, "base": 1e-2}}
    fitted, hand = fit(Parts(), epochs=3, **settings), Parts()
    groups = [{"params": hand.base.parameters()}, {"params": hand.classifier.parameters(), "lr": 1e-3}]
    assert same(fitted.model, by_hand(hand, torch.optim.SGD(groups, lr=1e-2, momentum=0.9), epochs=3))


# Not only learning rates: "different hyper-parameters of the algorithm for different parameters".
def test_parts_of_the_model_have_algorithms_of_their_own():
    recipe = {"classifier": optim.SGD(momentum=0.5, fused=False), "*": optim.SGD(momentum=0.9, fused=False)}
    fitted, hand = fit(Parts(), epochs=3, optimizer=recipe, lr=1e-2), Parts()
    groups = [{"params": hand.base.parameters()}, {"params": hand.classifier.parameters(), "momentum": 0.5}]
    assert same(fitted.model, by_hand(hand, torch.optim.SGD(groups, lr=1e-2, momentum=0.9), epochs=3))


class Moody(nn.Module):
    """Behaves differently in training and testing: batch norm and dropout; and notes in which mode it was asked."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return self.body(x)


# "Before training, the model has to be put into training mode with train()": fit does it, whatever mode it was left in.
def test_a_model_is_trained_in_training_mode_whatever_mode_it_came_in():
    fresh, used = Moody(), Moody().eval()
    fit(fresh, epochs=1, optimizer=optim.SGD(), lr=0.1)
    fit(used, epochs=1, optimizer=optim.SGD(), lr=0.1)
    assert used.modes == [True] * 3
    assert same(fresh, used)


# "When testing, eval() or train(False) has to be called": validation, evaluate and predict do it, and undo nothing.
def test_a_model_is_judged_in_testing_mode_and_stays_in_its_own():
    model = Moody()
    learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), seed=0)
    fitted = learner.fit((X, Y), valid=(X, Y), epochs=2, batch_size=16, show=False)
    assert model.modes == ([True] * 3 + [False] * 3) * 2
    statistics = model.body[1].running_mean.clone()
    model.modes.clear()
    assert fitted.evaluate((X, Y)) == fitted.evaluate((X, Y))
    assert torch.equal(fitted.predict((X, Y)), fitted.predict(X))
    assert not any(model.modes) and model.training and torch.equal(model.body[1].running_mean, statistics)


# "def train(dataloader, model, loss_fn, optimizer)": the page's function, with its device moves, is a fit.
def test_the_training_function_of_the_page_is_a_fit():
    hand = Parts()
    by_hand(hand, torch.optim.SGD(hand.parameters(), lr=1e-2), epochs=1)
    assert same(fit(Parts(), epochs=1, optimizer=optim.SGD(fused=False), lr=1e-2, device="cpu").model, hand)


# "if batch % 100 == 0: print(loss, current)": the running loss every so often.
def test_the_loss_can_be_printed_every_so_many_batches(capsys):
    def tell(ctx):
        if ctx.batch_number % 2 == 0:
            print(f"loss: {ctx.loss.item():>7f}  [{ctx.batch_number * 8:>5d}/{48:>5d}]")

    learner = stoker.Learner(Parts(), loss=nn.CrossEntropyLoss(), seed=0)
    learner.fit((X, Y), epochs=1, batch_size=8, show=False, callbacks=[callbacks.on(train_batch_end=tell)])
    lines = capsys.readouterr().out.splitlines()
    assert [line[-14:] for line in lines] == [
        "[   16/   48]".rjust(14),
        "[   32/   48]".rjust(14),
        "[   48/   48]".rjust(14),
    ]
    assert all(0 < float(line.split()[1]) < 5 for line in lines)


# The example's data set, data loader and loss go in as they are: a loss of shape [1], samples that are pairs.
def test_the_data_set_and_the_loss_of_the_page_go_in_as_they_are():
    learner = stoker.Learner(simple_model(), loss=loss_fn, optimizer=optim.AdamW(), metrics=[metrics.MSE()], seed=0)
    fitted = learner.fit(DataLoader(DATASET, batch_size=8), epochs=10, show=False)
    losses = fitted.history["train/loss"]
    assert losses[-1] < losses[0] and losses == pytest.approx(fitted.history["train/mse"], rel=1e-5)


# "With update cycles and batch sizes changed, the result is that of the large batch": short last window included.
@pytest.mark.parametrize("cycle", [2, 3, 8])
def test_an_update_cycle_is_the_large_batch(cycle):
    settings = {"loss": loss_fn, "optimizer": optim.AdamW(), "lr": 1e-3, "seed": 0}
    small = stoker.Learner(simple_model(), accumulate=cycle, **settings)
    large = stoker.Learner(simple_model(), **settings)
    a = small.fit(DataLoader(DATASET, batch_size=8), epochs=10, show=False)
    b = large.fit(DataLoader(DATASET, batch_size=8 * cycle), epochs=10, show=False)
    assert a.updates == b.updates == 10 * -(-63 // (8 * cycle))
    for name, value in b.model.state_dict().items():
        torch.testing.assert_close(a.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert a.history["train/loss"] == pytest.approx(b.history["train/loss"], rel=1e-5)


# The page's own loop with update_cycle=1, by hand in torch: the same bits.
def test_without_a_cycle_it_is_the_loop_of_the_page():
    model = simple_model()
    hand = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(hand.parameters())
    for _ in range(3):
        for x, y in DataLoader(DATASET, batch_size=8):
            optimizer.zero_grad()
            loss_fn(hand(x), y).backward()
            optimizer.step()
    learner = stoker.Learner(model, loss=loss_fn, optimizer=optim.AdamW(fused=False), lr=1e-3, seed=0)
    assert same(learner.fit(DataLoader(DATASET, batch_size=8), epochs=3, show=False).model, hand)
