"""Accelerate: a loop of the user's with prepared parts; it has no metrics."""

from accelerate import Accelerator


def fit(work, epochs, clock):
    model = work.model()
    accelerator = Accelerator(cpu=work.device == "cpu")
    model, optimizer, batches = accelerator.prepare(model, work.optimizer(model), work.dataloader())
    updates = 0
    for _ in range(epochs):
        total = 0.0
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = work.loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item()
            updates += 1
        clock()
    return accelerator.unwrap_model(model), updates
