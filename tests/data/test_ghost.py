import pickle

import torch

from stoker.data import Loader, PaddingBatch, batchable, move_batch


def test_a_ghost_is_moved_as_what_is_in_it_is():
    there = move_batch(PaddingBatch((torch.zeros(1, 2), {"y": torch.ones(1)})), torch.device("meta"))
    assert isinstance(there, PaddingBatch)
    assert there.batch[0].device.type == there.batch[1]["y"].device.type == "meta"


def test_a_ghost_travels_between_processes():
    ghost = pickle.loads(pickle.dumps(PaddingBatch(torch.tensor([3]))))
    assert isinstance(ghost, PaddingBatch)
    assert ghost.batch.tolist() == [3]


def test_a_ghost_goes_through_a_batchable_transform_as_a_batch_does():
    x, y = torch.arange(4.0).view(2, 2), torch.arange(2)
    doubled = batchable(lambda x, y: (x * 2, y))
    ghost = next(iter(Loader((x, y), batch_size=2, transform=doubled, device="cpu").shared(0, 3)))
    assert isinstance(ghost, PaddingBatch)
    assert [part.tolist() for part in ghost.batch] == [[[0.0, 2.0]], [0]]
    loader = Loader((x, y), batch_size=2, transform=doubled).shared(0, 3)
    again = loader.apply_batch_transform(next(loader.at(epoch=0).raw()))
    assert isinstance(again, PaddingBatch)
    assert torch.equal(again.batch[0], ghost.batch[0])
    alone = batchable(lambda x: x + 1)
    ghost = next(iter(Loader(x, batch_size=2, transform=alone).shared(0, 3)))
    assert isinstance(ghost, PaddingBatch)
    assert ghost.batch.tolist() == [[1.0, 2.0]]
