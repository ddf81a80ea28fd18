"""Graph classification with PyTorch Geometric: batches are its own class, and their loader too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data, metrics
from tests.libraries.checks import Case, assert_same, weights

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # while it is imported
]


def graph(number):
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(number)
    nodes = 3 + number % 4
    edges = torch.randint(0, nodes, (2, 2 * nodes), generator=generator)
    return Data(x=torch.randn(nodes, 4, generator=generator), edge_index=edges, y=torch.tensor([number % 3]))


class Classifier(nn.Module):
    def __init__(self, kind):
        from torch_geometric import nn as layers

        super().__init__()
        self.body = getattr(layers, kind)(4, 8, num_layers=2, out_channels=8, dropout=0.2)
        self.pool, self.head = layers.aggr.MeanAggregation(), nn.Linear(8, 3)

    def forward(self, graphs):
        return self.head(self.pool(self.body(graphs.x, graphs.edge_index), graphs.batch))


def loss(model, graphs):
    return F.cross_entropy(model(graphs), graphs.y)


def case(kind):
    from torch_geometric.loader import DataLoader

    return Case(
        lambda: Classifier(kind),
        DataLoader([graph(number) for number in range(10)], batch_size=4),
        loss,
        {"step": loss},
        batch_size=None,
        predict=lambda model, graphs: model(graphs),
        count=lambda graphs: graphs.num_graphs,
    )


class ByName(Classifier):
    def forward(self, x, edge_index, batch=None):
        return self.head(self.pool(self.body(x, edge_index), batch))


@pytest.mark.parametrize("make", [Classifier, ByName])
def test_a_loss_function_compares_with_y_and_forward_takes_the_batch_or_its_parts(make):
    graphs = [graph(number) for number in range(10)]
    torch.manual_seed(1)
    model = make("GCN")
    learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy()], lr=1e-2, seed=0)
    fitted = learner.fit(data.Loader(graphs, batch_size=4), epochs=2, keep="last", show=False)
    torch.manual_seed(1)
    other = Classifier("GCN")
    stepped = stoker.Learner(other, step=loss, lr=1e-2, seed=0)
    assert_same(weights(stepped.fit(data.Loader(graphs, batch_size=4), epochs=2, show=False).model), weights(model))
    scores = fitted.predict(graphs)
    expected = torch.tensor([each.y.item() for each in graphs])
    found = fitted.evaluate(graphs, batch_size=3)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == expected).double().mean().item())
    assert found["loss"] == pytest.approx(F.cross_entropy(scores, expected).item(), rel=1e-5)
