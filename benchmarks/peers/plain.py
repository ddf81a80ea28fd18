"""Plain torch: the loop that everybody writes, and faster versions of it."""

import torch


def fit(work, epochs, clock):
    """Batches from a `DataLoader`; reads the loss, and for classes the correct answers, of every batch."""
    return _fit(work, epochs, clock, dataloader=True)


def fit_indexing(work, epochs, clock):
    """Batches indexed from tensors on the device; the loss is never read."""
    return _fit(work, epochs, clock)


def fit_fused(work, epochs, clock):
    """The same with torch's fused optimizer."""
    return _fit(work, epochs, clock, fused=True)


def fit_compiled(work, epochs, clock):
    """The same with model and loss compiled."""
    return _fit(work, epochs, clock, fused=True, compiled=True)


def _fit(work, epochs, clock, **options):
    model = work.model()
    epoch = make_epoch(work, model, **options)
    updates = 0
    for _ in range(epochs):
        updates += epoch()
        clock()
    return model, updates


def make_epoch(work, model, *, dataloader=False, fused=None, compiled=False):
    """A function that trains for one epoch and returns the number of its updates."""
    if work.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    update = make_update(work, model, fused=fused, compiled=compiled)
    batches = work.dataloader() if dataloader else _indexed_batches(work)

    def epoch_that_reads_losses():
        total, correct, updates = 0.0, 0, 0
        for inputs, targets in batches:
            targets = targets.to(work.device, non_blocking=True)
            loss, predictions = update(inputs.to(work.device, non_blocking=True), targets)
            total += loss.item()
            if work.metric == "accuracy":
                correct += (predictions.argmax(1) == targets).sum().item()
            updates += 1
        return updates

    def epoch():
        updates = 0
        for inputs, targets in batches():
            update(inputs, targets)
            updates += 1
        return updates

    return epoch_that_reads_losses if dataloader else epoch


def make_update(work, model, *, fused=None, compiled=False):
    """A function that trains on one batch and returns the loss and, unless compiled, the predictions."""
    optimizer = work.optimizer(model, fused)

    def forward(inputs, targets):
        with work.autocast():
            predictions = model(inputs)
            return work.loss(predictions, targets), None if compiled else predictions

    if compiled:  # a short last batch gets a second program, instead of one for all sizes
        forward = torch.compile(forward, dynamic=False)

    def update(inputs, targets):
        optimizer.zero_grad()
        loss, predictions = forward(inputs, targets)
        loss.backward()
        if work.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip_norm)
        optimizer.step()
        return loss, predictions

    return update


def _indexed_batches(work):
    x, y = work.data_on_device()

    def batches():
        order = torch.randperm(len(x), device=x.device)
        for start in range(0, len(x), work.batch):
            rows = order[start : start + work.batch]
            yield x[rows], y[rows]

    return batches
