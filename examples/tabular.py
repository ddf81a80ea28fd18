"""A table with few positive rows: class weights in the loss, k-fold cross-validation, early stopping.

Fits five small networks to scikit-learn's breast cancer data, without three of four malignant rows. Prints the AUROC
and the mean recall of both classes for each fold, on rows that its network has not seen. Takes about five seconds.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold
from torch import nn

import stoker
from stoker import callbacks, data, metrics

numbers, benign = load_breast_cancer(return_X_y=True)
kept = (benign == 1) | (np.arange(len(benign)) % 4 == 0)
numbers = torch.tensor(numbers[kept], dtype=torch.float32)
labels = torch.tensor(1 - benign[kept])  # 1 is malignant, about one of eight
folds = StratifiedKFold(5, shuffle=True, random_state=0)


class Net(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.layers = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))

    def forward(self, numbers):
        return self.layers((numbers - self.mean) / self.std)


results = []
for fold, (train, test) in enumerate(folds.split(numbers, labels), start=1):
    counts = labels[train].bincount()
    learner = stoker.Learner(
        Net,
        loss=nn.CrossEntropyLoss(weight=counts.sum() / (2 * counts)),  # both classes count the same
        lr=3e-3,
        metrics=[metrics.AUROC(), metrics.Recall(average="macro")],
        seed=fold,
    ).hparams(mean=numbers[train].mean(0), std=numbers[train].std(0))
    fitted = learner.fit(
        data.take((numbers, labels), train),
        valid=0.2,
        epochs=40,
        callbacks=[callbacks.EarlyStopping(patience=5)],
        show=False,
    )
    results.append(fitted.evaluate(data.take((numbers, labels), test)))
    print(f"fold {fold}: {fitted.epochs} epochs, " + ", ".join(f"{name} {x:.3f}" for name, x in results[-1].items()))

for name in ("auroc", "recall_macro"):
    values = np.array([result[name] for result in results])
    print(f"{name} of {len(values)} folds: {values.mean():.3f} ± {values.std():.3f}")
