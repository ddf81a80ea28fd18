"""Graph classification with PyTorch Geometric: its `DataLoader` and its batches go into `fit` as they are.

`forward` gets the parts of a batch that it names, and the loss function compares with its `y`.

A graph isomorphism network learns whether the edges of a graph are random, or nodes with many edges got more of them.
Prints the validation accuracy. Takes about ten seconds.
"""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_mean_pool
from torch_geometric.utils import barabasi_albert_graph, erdos_renyi_graph

import stoker
from stoker import callbacks, metrics


def draw_graph(label):
    nodes = int(torch.randint(20, 40, ()))
    edges = barabasi_albert_graph(nodes, 2) if label else erdos_renyi_graph(nodes, 3.8 / nodes)
    return Data(x=torch.ones(nodes, 1), edge_index=edges, y=torch.tensor(label))


class Net(nn.Module):
    def __init__(self, hidden: int = 32):
        super().__init__()
        self.body, self.head = GIN(1, hidden, num_layers=3, norm="batch_norm"), nn.Linear(hidden, 2)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.body(x, edge_index), batch))


torch.manual_seed(0)
graphs = [draw_graph(number % 2) for number in range(800)]
train, valid = DataLoader(graphs[:600], batch_size=32, shuffle=True), DataLoader(graphs[600:], batch_size=100)
scores = [metrics.Accuracy(), metrics.AUROC(on="valid")]
learner = stoker.Learner(Net(), loss=nn.CrossEntropyLoss(), lr=5e-3, metrics=scores, seed=0)
fitted = learner.fit(train, valid=valid, epochs=15, callbacks=[callbacks.ReduceLROnPlateau(patience=2)])
print(f"validation accuracy: {fitted.evaluate(valid)['accuracy']:.3f}")
