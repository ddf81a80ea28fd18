"""A UNet of diffusers that learns to predict the noise of a DDPM schedule."""

import pytest
import torch
import torch.nn.functional as F

from tests.libraries.checks import Case, assert_same

pytestmark = pytest.mark.soak
IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def make():
    import diffusers

    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
        dropout=0.1,
    )


def make_case():
    import diffusers

    scheduler = diffusers.DDPMScheduler(num_train_timesteps=20)

    def loss(model, images):
        noise, times = torch.randn_like(images), torch.randint(0, 20, (len(images),), device=images.device)
        return F.mse_loss(model(scheduler.add_noise(images, noise, times), times).sample, noise)

    # The parameters of a view don't require gradients, for which torch multiplies transposed inputs in another order.
    example = {"sample": IMAGES[:2], "timestep": torch.tensor([1, 5])}
    return Case(make, IMAGES, loss, {"step": loss}, tolerance=1e-6, example=example, resumed={"ema": 0.9})


def test_the_model_is_saved_and_draws_samples_as_usual(tmp_path):
    import diffusers

    case = make_case()
    model = case.fit(case.learner(ema=0.9)).model
    model.save_pretrained(tmp_path / "unet")
    again = diffusers.UNet2DModel.from_pretrained(tmp_path / "unet").eval()
    pipelines = [
        diffusers.DDPMPipeline(each, diffusers.DDPMScheduler(num_train_timesteps=20)) for each in (model, again)
    ]
    for pipeline in pipelines:
        pipeline.set_progress_bar_config(disable=True)
    drawn = [
        pipeline(
            batch_size=2, num_inference_steps=3, output_type="np", generator=torch.Generator().manual_seed(5)
        ).images
        for pipeline in pipelines
    ]
    assert_same(*map(torch.from_numpy, drawn))
