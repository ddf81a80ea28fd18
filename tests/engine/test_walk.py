"""The batches that are left of an epoch: at once where the order is a function, by reading again where it is drawn."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker import Checkpoint, data
from stoker.loop._walk import walked
from tests.learner.runs import came_out, fit, killed
from tests.engine.fits import learner, samples

EVERY_BATCH = Checkpoint(every=1, background=False)


def made(loader):
    given = learner().fit(loader, epochs=1, show=False)._prepared.fit
    given.ctx.epoch, given.ctx.batch_number, given.opened = 2, 0, {}
    return given


def contents(batches):
    return [targets.tolist() for _, targets in batches]


def test_of_a_loader_only_what_is_left_is_made():
    made_samples = []

    def transform(image, label):
        made_samples.append(int(label))
        return image, label

    loader = data.Loader(samples(24), batch_size=4, shuffle=1, transform=transform)
    here = made(loader)
    whole = contents(walked(here))
    made_samples.clear()
    here.ctx.batch_number = 4
    assert contents(walked(here)) == whole[4:] and len(made_samples) == 8


@pytest.mark.parametrize("generator", [None, 3], ids=["global generator", "its own"])
def test_a_dataloader_is_read_again_from_where_its_generators_stood(generator):
    def loader():
        own = None if generator is None else torch.Generator().manual_seed(generator)
        return DataLoader(TensorDataset(*samples(24)), batch_size=4, shuffle=True, generator=own)

    torch.manual_seed(0)
    here = made(loader())
    whole = contents(walked(here))
    torch.rand(3)
    state = torch.get_rng_state()
    here.ctx.batch_number = 4
    left = walked(here)
    assert torch.equal(torch.get_rng_state(), state), "the generators stand where the training left them"
    assert contents(left) == whole[4:]


def dataloader(workers=0):
    generator = torch.Generator().manual_seed(5)
    dataset = TensorDataset(*samples(96))
    return DataLoader(dataset, batch_size=16, shuffle=True, generator=generator, num_workers=workers)


@pytest.mark.parametrize("batch", [1, 4, 6])
def test_a_fit_on_a_dataloader_goes_on_to_the_same_bits(tmp_path, batch):
    settings = {"batch_size": None, "checkpoint": EVERY_BATCH}
    left, whole = killed(tmp_path, 2, batch, data=dataloader(), **settings)
    assert came_out(fit(left, data=dataloader(), **settings)) == whole


def test_a_stream_is_read_up_to_there(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*samples(96), strict=True))

    def streamed():
        return {"data": data.Loader(Stream(), batch_size=16), "batch_size": None, "checkpoint": EVERY_BATCH}

    left, whole = killed(tmp_path, 2, 3, **streamed())
    assert came_out(fit(left, **streamed())) == whole
