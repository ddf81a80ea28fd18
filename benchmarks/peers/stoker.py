"""stoker: `Learner.fit` without console output."""

import torch

import stoker
from stoker import metrics, optim
from stoker.callbacks import on

METRICS = {"mae": [metrics.MAE()], "accuracy": [metrics.Accuracy()], None: []}


def fit(work, epochs, clock):
    """With its defaults."""
    return _fit(make_learner(work), work, epochs, clock)


def fit_compiled(work, epochs, clock):
    """The whole step compiled."""
    return _fit(make_learner(work, compile=True), work, epochs, clock)


def fit_tuned(work, epochs, clock):
    """Compiled, with convolutions that cuDNN chooses by timing them, as JAX does."""
    torch.backends.cudnn.benchmark = True
    return fit_compiled(work, epochs, clock)


def fit_fsdp(work, epochs, clock):
    """Sharded, with one process that holds all shards: the overhead of FSDP2 and NCCL."""
    return _fit(make_learner(work, parallel="fsdp"), work, epochs, clock)


def fit_fsdp_bf16(work, epochs, clock):
    """The same, gathered in bf16 and once for an update."""
    parallel = stoker.Parallel(mode="fsdp", param_dtype="bf16", reshard=False)
    return _fit(make_learner(work, parallel=parallel), work, epochs, clock)


def make_learner(work, **settings):
    """A learner for the workload; `settings` override what the workload says."""
    return stoker.Learner(
        work.model(),
        **{
            "loss": work.loss,
            "optimizer": optim.Adam() if work.decay is None else optim.AdamW(weight_decay=work.decay),
            "lr": work.lr,
            "metrics": METRICS[work.metric],
            "clip_norm": work.clip_norm,
            "precision": work.precision,
            "device": work.device,
            "seed": 0,
            **settings,
        },
    )


def _fit(learner, work, epochs, clock):
    # After a callback stoker looks whether the model has changed: about 0.12 ms an epoch, and most fits have none.
    callbacks = [on(epoch_end=clock)] if clock.needs_calls else []
    fitted = learner.fit(work.data(), epochs=epochs, batch_size=work.batch, callbacks=callbacks, show=False)
    if not clock.needs_calls:
        clock.add_stamps(event.time for event in fitted.record.events_of("epoch"))
    return fitted.model, fitted.updates
