"""Stand-ins for a fit's tensors, and everything as it was afterwards."""

import pytest
import torch
from torch import nn

from stoker import optim
from stoker.learner._prepare import prepare
from stoker.learner._wish import Wish
from stoker.loop._lend import lent, slots_in
from stoker.loop._stations import Stations
from stoker.program import Inputs
from tests.loop.fits import Net, learner, samples


def a_fit(model=Net, **settings):
    own = learner(model, optimizer=optim.AdamW(), ema=0.9, device="cpu", compile=True, **settings)
    fit = prepare(own._spec, Wish(samples(), epochs=1, batch_size=16))
    stations = Stations(fit)
    fit.ctx.lr, fit.ctx.accumulating = 0.01, False
    stations.run(next(iter(fit.train)))  # makes the moments
    stations.ready()
    return fit, stations


def everything(fit):
    modules = [*fit.model.modules(), *fit.average.model.modules()]
    state = [each for rule in fit.optimizer.state_tensors() for own in rule.values() for each in own.values()]
    return [table[name] for table, name in slots_in(modules)] + state


def test_inputs_are_all_that_a_step_writes_each_once():
    fit, stations = a_fit()
    written = stations.inputs().written
    assert len({id(each) for each in written}) == len(written)
    assert {id(each) for each in everything(fit)} <= {id(each) for each in written}
    assert {id(each) for each in stations.verdict.tensors()} <= {id(each) for each in written}


@pytest.mark.parametrize("fails", [False, True], ids=["well", "exception"])
def test_everything_is_as_it_was_afterwards(fails):
    fit, stations = a_fit()
    before, optimizer, verdict = everything(fit), fit.optimizer, stations.verdict.tensors()
    inputs = stations.inputs()
    copies = Inputs([each.detach().clone() for each in inputs.written], [each.clone() for each in inputs.rates])
    try:
        with stations.lent(copies):
            assert fit.optimizer is not optimizer and fit.model.head.weight is not before[0]
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert fit.optimizer is optimizer
    assert [id(each) for each in everything(fit)] == [id(each) for each in before]
    assert [id(each) for each in stations.verdict.tensors()] == [id(each) for each in verdict]


def test_a_step_with_stand_ins_changes_them_alone():
    fit, stations = a_fit()
    inputs = stations.inputs()
    before = [each.detach().clone() for each in inputs.written]
    copies = Inputs([each.detach().clone() for each in inputs.written], [each.clone() for each in inputs.rates])
    generators = torch.get_rng_state()
    with stations.lent(copies), stations.on_device():
        stations.run(next(iter(fit.train.at(epoch=0))))
    assert all(torch.equal(each, old) for each, old in zip(inputs.written, before, strict=True))
    torch.set_rng_state(generators)
    stations.run(next(iter(fit.train.at(epoch=0))))
    for each, copy in zip(inputs.written, copies.written, strict=True):
        if each is not stations.verdict.good:
            assert torch.allclose(each.float(), copy.float(), atol=1e-5), each


def test_a_recurrent_network_finds_stand_ins_in_its_list_and_does_not_build_it_anew():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 4)

        def forward(self, x):
            return self.head(self.body(x.reshape(-1, 3, 2))[0][:, -1])

    fit, stations = a_fit(Recurrent)
    inputs, body = stations.inputs(), fit.model.body
    flat, refs = body._flat_weights, body._flat_weight_refs
    copies = Inputs([each.detach().clone() for each in inputs.written], list(inputs.rates))
    with stations.lent(copies):
        lists = body._flat_weights
        assert [id(each) for each in lists] == [id(each) for each in body.parameters()]
        fit.model(torch.randn(2, 6))
        assert body._flat_weights is lists
    assert body._flat_weights is flat and body._flat_weight_refs is refs


def test_tied_weights_have_one_stand_in():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.head(self.two(self.one(x)))

    fit, stations = a_fit(Tied)
    written = stations.inputs().written
    with stations.lent(Inputs([each.detach().clone() for each in written], stations.inputs().rates)):
        assert fit.model.one.weight is fit.model.two.weight


def test_lent_is_open_only_once_its_stand_ins_are_there():
    fit, stations = a_fit()
    with pytest.raises(KeyError), lent(fit, list(fit.model.modules()), stations.verdict, {}):
        raise AssertionError("not reached")
