"""A diffusion model: the UNet and the noise schedule of diffusers learn to draw 8 × 8 digits.

The step is a function of (model, batch), so the UNet is trained as it is. Prints eight drawn digits, and how far such
digits are from the nearest real one, beside the same for noise. Takes about 20 seconds.
"""

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits

import stoker
from stoker import schedule

images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1  # [1797, 1, 8, 8], from -1 to 1
diffusion = DDPMScheduler(num_train_timesteps=50, beta_schedule="squaredcos_cap_v2")


def step(unet, images):
    noise, time = torch.randn_like(images), torch.randint(50, (len(images),), device=images.device)
    noisy = diffusion.add_noise(images, noise, time)
    return F.mse_loss(unet(noisy, time).sample, noise)


def draw(unet, count):
    drawn, backwards = torch.randn(count, 1, 8, 8), DDPMScheduler.from_config(diffusion.config)
    for time in backwards.timesteps:
        drawn = backwards.step(unet(drawn, time).sample, time, drawn).prev_sample
    return drawn


def distance(drawn):
    """The mean distance to the nearest real digit."""
    return torch.cdist(drawn.flatten(1), images.flatten(1)).min(1).values.mean()


torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    block_out_channels=(16, 32),
    layers_per_block=1,
    norm_num_groups=8,
    add_attention=False,
    down_block_types=("DownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "UpBlock2D"),
)
learner = stoker.Learner(unet, step=step, lr=schedule.cosine(4e-3), ema=0.99, seed=0)
fitted = learner.fit(images, epochs=10, batch_size=64)
drawn, noise = draw(stoker.valid(fitted.model), 64), torch.randn(64, 1, 8, 8)
for row in drawn[:8, 0].movedim(0, 1).flatten(1):  # side by side
    print("".join(" ░▒▓█"[int(level)] for level in (row * 2.5 + 2.5).clamp(0, 4)))
print(f"distance to the nearest real digit: {distance(drawn):.2f}, of noise {distance(noise):.2f}")
