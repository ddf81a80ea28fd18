"""Forecasting: windows of a long series, cut into past and future on the device, with a one-cycle schedule.

Trains a GRU to forecast the next day of an hourly series from the week before. Prints its error beside that of
repeating last week, on later weeks than those it is trained on. Takes about five seconds.
"""

import math

import torch
from torch import nn

import stoker
from stoker import data, metrics, schedule

WEEK, DAY = 7 * 24, 24


def make_series(hours: int) -> torch.Tensor:
    """Hourly values with a daily and a weekly rhythm, a slow change, and noise that lasts for some hours."""
    hour = torch.arange(hours)
    noise = torch.randn(hours, generator=torch.Generator().manual_seed(0))
    for now in range(1, hours):
        noise[now] = 0.8 * noise[now - 1] + 0.3 * noise[now]
    daily, weekly = torch.sin(2 * math.pi * hour / DAY), torch.cos(2 * math.pi * hour / WEEK)
    return (daily * (1 + 0.5 * weekly) + torch.sin(hour / 900) + 0.5 * noise)[:, None]


class Forecaster(nn.Module):
    def __init__(self, hidden: int = 32):
        super().__init__()
        self.encoder, self.head = nn.GRU(DAY, hidden, batch_first=True), nn.Linear(hidden, DAY)

    def forward(self, past):
        last = past[:, -1:, 0]
        days = (past - past[:, -1:]).reshape(len(past), -1, DAY)  # a day is one step of the GRU
        return last + self.head(self.encoder(days)[0][:, -1])


@data.batchable
def cut(window):
    """A window of eight days: a week as input, the day after it as target."""
    return window[:, :WEEK], window[:, WEEK:, 0]


train, valid = data.split(make_series(8000), [0.8, 0.2], seed=None)  # in the order of time
train = data.Loader(data.windows(train, WEEK + DAY), batch_size=64, shuffle=0, transform=cut)
valid = data.Loader(data.windows(valid, WEEK + DAY), batch_size=256, transform=cut)
learner = stoker.Learner(
    Forecaster(),
    loss=nn.SmoothL1Loss(),
    lr=schedule.one_cycle(1e-2),
    metrics=[metrics.MAE()],
    seed=0,
)
fitted = learner.fit(train, valid=valid, epochs=8)
naive = torch.cat([(past[:, -WEEK : DAY - WEEK, 0] - future).abs() for past, future in valid]).mean()
print(f"mean absolute error of the next day: {fitted.evaluate(valid)['mae']:.3f}, of repeating last week: {naive:.3f}")
