"""Plain torch: the loop that everybody writes, and what is made of it by people who look for speed."""

import torch


def fit(work, epochs, clock):
    """Batches from a `DataLoader`; `loss.item()`, and the share that is right, of every batch."""
    return _fit(work, epochs, clock, dataloader=True)


def fit_indexing(work, epochs, clock):
    """Batches indexed out of tensors that lie on the device, and nobody looks at the loss."""
    return _fit(work, epochs, clock)


def fit_fused(work, epochs, clock):
    """The same with torch's fused optimizer."""
    return _fit(work, epochs, clock, fused=True)


def fit_compiled(work, epochs, clock):
    """The same with model and loss compiled."""
    return _fit(work, epochs, clock, fused=True, compiled=True)


def _fit(work, epochs, clock, **options):
    model = work.model()
    epoch = epoch_by_hand(work, model, **options)
    updates = 0
    for _ in range(epochs):
        updates += epoch()
        clock()
    return model, updates


def epoch_by_hand(work, model, *, dataloader=False, fused=None, compiled=False):
    """A function that trains for one epoch and returns the number of its updates."""
    if work.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    update = update_by_hand(work, model, fused=fused, compiled=compiled)
    batches = work.batches() if dataloader else _indexed(work)

    def with_a_look():
        total, right, updates = 0.0, 0, 0
        for inputs, targets in batches:
            targets = targets.to(work.device, non_blocking=True)
            loss, predictions = update(inputs.to(work.device, non_blocking=True), targets)
            total += loss.item()
            if work.metric == "accuracy":
                right += (predictions.argmax(1) == targets).sum().item()
            updates += 1
        return updates

    def in_the_dark():
        updates = 0
        for inputs, targets in batches():
            update(inputs, targets)
            updates += 1
        return updates

    return with_a_look if dataloader else in_the_dark


def update_by_hand(work, model, *, fused=None, compiled=False):
    """A function that trains on one batch, and returns the loss and the predictions (a compiled one: the loss)."""
    optimizer = work.optimizer(model, fused)

    def forward(inputs, targets):
        with work.autocast():
            predictions = model(inputs)
            return work.loss(predictions, targets), None if compiled else predictions

    if compiled:  # a short last batch is a second program, not one for all sizes
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


def _indexed(work):
    x, y = work.resident()

    def batches():
        order = torch.randperm(len(x), device=x.device)
        for start in range(0, len(x), work.batch):
            rows = order[start : start + work.batch]
            yield x[rows], y[rows]

    return batches
