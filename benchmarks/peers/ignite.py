"""Ignite: `create_supervised_trainer` with the mean loss and the absolute error attached; no output."""

from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import Average, MeanAbsoluteError


def fit(work, epochs, clock):
    model = work.model()
    trainer = create_supervised_trainer(
        model,
        work.optimizer(model),
        work.loss,
        output_transform=lambda inputs, targets, predictions, value: (predictions, targets, value.item()),
    )
    MeanAbsoluteError(output_transform=lambda output: output[:2]).attach(trainer, "mae")
    Average(output_transform=lambda output: output[2]).attach(trainer, "loss")
    trainer.add_event_handler(Events.EPOCH_COMPLETED, clock)
    state = trainer.run(work.dataloader(), max_epochs=epochs)
    return model, state.iteration
