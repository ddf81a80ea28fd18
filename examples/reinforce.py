"""REINFORCE in a loop of your own: gradients are values, so there is nothing to zero and nothing to detach by accident.

A policy learns to balance a pole on a cart; 32 carts are simulated at once, with the equations of the classic task.
Prints how many of 200 steps the pole stays up. Takes about five seconds.
"""

import torch
from torch import nn
from torch.distributions import Categorical

import stoker
from stoker import optim, schedule

CARTS, STEPS, UPDATES = 32, 200, 30


def move(state, action):
    """One step of 20 ms of carts with a pole; `state` is position, speed, angle and angular speed."""
    _, v, angle, turn = state.unbind(1)
    push = (20.0 * action - 10 + 0.05 * turn.square() * angle.sin()) / 1.1
    turning = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    change = torch.stack((v, push - 0.05 * turning * angle.cos() / 1.1, turn, turning), 1)
    return state + 0.02 * change


def play(policy):
    """Plays one episode on every cart: log probabilities and whether the pole was up, [steps, carts] each."""
    state, up, logs, ups = torch.rand(CARTS, 4) * 0.1 - 0.05, torch.ones(CARTS), [], []
    for _ in range(STEPS):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        state = move(state, action)
        logs.append(choice.log_prob(action))
        ups.append(up)
        up = up * ((state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.21))  # a fallen pole stays down
        if not up.any():
            break
    return torch.stack(logs), torch.stack(ups)


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer, lr = optim.Adam().init(policy), schedule.linear(2e-2, 2e-3, updates=UPDATES)
for update in range(UPDATES):
    logs, up = play(policy)
    returns = up.flip(0).cumsum(0).flip(0)  # the steps that were still to come
    baseline = (returns * up).sum(1, keepdim=True) / up.sum(1, keepdim=True)
    loss = -(logs * (returns - baseline) * up).sum() / up.sum() / 10
    grads = stoker.backward(loss, policy)
    optimizer.step(grads.clip_norm(1.0), lr=lr(update))
    if update % 10 == 9:
        print(f"update {update + 1}: the pole stays up for {up.sum(0).mean():.0f} steps")

print(f"trained: {play(stoker.valid(policy))[1].sum(0).mean():.0f} of {STEPS} steps")
