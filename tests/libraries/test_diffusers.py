"""A UNet of diffusers that learns to predict the noise of a DDPM schedule."""

import pytest
import torch
import torch.nn.functional as F

from tests.libraries.checks import (
    Case,
    assert_same,
    check_executors,
    check_resume,
    check_summary,
    check_training,
    check_view,
)

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


@pytest.fixture
def case():
    import diffusers

    scheduler = diffusers.DDPMScheduler(num_train_timesteps=20)

    def loss(model, images):
        noise, times = torch.randn_like(images), torch.randint(0, 20, (len(images),), device=images.device)
        return F.mse_loss(model(scheduler.add_noise(images, noise, times), times).sample, noise)

    return Case(make, IMAGES, loss, {"step": loss}, batch_size=4)


def test_a_view_computes_what_eval_mode_computes(case):
    # The parameters of a view don't require gradients, for which torch multiplies transposed inputs in another order.
    check_view(case, tolerance=1e-6)


def test_a_summary_and_an_explanation(case):
    check_summary(case, {"sample": IMAGES[:2], "timestep": torch.tensor([1, 5])})


def test_a_fit_has_the_weights_of_a_plain_loop(case):
    check_training(case)


def test_a_crashed_run_resumes_to_the_same_bits(case, tmp_path):
    check_resume(case, tmp_path, ema=0.9)


def test_the_model_is_saved_and_draws_samples_as_usual(case, tmp_path):
    import diffusers

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


@pytest.mark.cuda
def test_a_captured_step_has_the_bits_of_an_eager_one(case):
    print(check_executors(case))
