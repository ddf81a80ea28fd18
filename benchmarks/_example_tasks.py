"""The tasks of examples/ in realistic sizes: models of other libraries with random weights, random data, plain losses.

Each task says how a plain loop computes the loss of a batch, and how stoker is told the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, for the plain loops and for stoker.

    - `columns`: tensors, a tuple or a mapping of them, in batches of `batch` samples; or `loader`, of whole batches.
    - `loss_of`: the loss of a batch, for the plain loops. `learner`: what says the same to stoker.
    - `make_update`: replaces the plain update, a function of a batch that returns the loss.
    """

    text: str
    model: Callable[[], nn.Module]
    batch: int
    columns: Callable[[int], Any] | None = None  # of a number of samples
    loader: Callable[[int], DataLoader] | None = None
    loss_of: Callable[[Any, Any], Tensor] = None  # pyright: ignore[reportAssignmentType]  not with make_update
    learner: dict[str, Any] = field(default_factory=dict)
    make_update: Callable[[nn.Module], Callable[[Any], Tensor]] | None = None
    lr: float = 1e-4
    clip_norm: float | None = None
    precision: str = "fp32"
    shuffle: bool = True


class Rows(Dataset):
    """Columns as a dataset that a `DataLoader` reads in whole batches."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())) if isinstance(self.columns, Mapping) else self.columns[0])

    def __getitems__(self, numbers):
        if isinstance(self.columns, Mapping):
            return {name: column[numbers] for name, column in self.columns.items()}
        return tuple([column[numbers] for column in self.columns])


def load_columns(columns, batch, *, shuffle, pin_memory):
    """The quickest `DataLoader` for tensors in memory: workers would copy every batch once more."""
    return DataLoader(Rows(columns), batch, shuffle=shuffle, pin_memory=pin_memory, collate_fn=lambda batch: batch)


def own_loss(model, batch):
    """Of a model of Transformers."""
    return model(**batch).loss


def text(tiny):
    from transformers import BertConfig, BertForSequenceClassification

    length, batch = (16, 4) if tiny else (128, 32)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

    def columns(count):
        lengths = torch.randint(length // 2, length + 1, (count, 1))
        mask = (torch.arange(length) < lengths).long()
        ids = torch.randint(1000, (count, length)) * mask
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(2, (count,))}

    return Task(
        text=f"BERT-base for two classes, {batch} × {length} tokens, AdamW, clipped to norm 1, bf16",
        model=lambda: BertForSequenceClassification(BertConfig(**(sizes if tiny else {}))),
        columns=columns,
        batch=batch,
        loss_of=own_loss,
        lr=2e-5,
        clip_norm=1.0,
        precision="bf16",
    )


def make_gpt2(tiny, length):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 256} if tiny else {}
    return GPT2LMHeadModel(GPT2Config(n_positions=length, use_cache=False, loss_type="ForCausalLM", **sizes))


def token_columns(length, tiny):
    def columns(count):
        tokens = torch.randint(256 if tiny else 50257, (count, length))
        return {"input_ids": tokens, "labels": tokens}

    return columns


def causal_lm(tiny):
    length, batch = (16, 4) if tiny else (1024, 8)
    return Task(
        text=f"GPT-2 124M, {batch} × {length} tokens, AdamW, clipped to norm 1, bf16",
        model=lambda: make_gpt2(tiny, length),
        columns=token_columns(length, tiny),
        batch=batch,
        loss_of=own_loss,
        clip_norm=1.0,
        precision="bf16",
    )


def lora(tiny):
    from peft import LoraConfig, get_peft_model

    length, batch = (16, 4) if tiny else (512, 16)
    config = LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.05)
    return Task(
        text=f"LoRA of rank 16 on GPT-2 124M, {batch} × {length} tokens, AdamW, bf16",
        model=lambda: get_peft_model(make_gpt2(tiny, length), config),
        columns=token_columns(length, tiny),
        batch=batch,
        loss_of=own_loss,
        precision="bf16",
    )


def image_columns(size, classes):
    return lambda count: (torch.randn(count, 3, size, size), torch.randint(classes, (count,)))


def timm_task(name, tiny_name):
    def task(tiny):
        import timm

        size, batch = (32, 4) if tiny else (224, 64)
        return Task(
            text=f"timm's {name}, {batch} × 3 × {size} × {size}, AdamW, bf16",
            model=lambda: timm.create_model(
                tiny_name if tiny else name, num_classes=100, **({"img_size": size} if "vit" in name else {})
            ),
            columns=image_columns(size, 100),
            batch=batch,
            loss_of=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
            learner={"loss": nn.CrossEntropyLoss()},
            precision="bf16",
        )

    return task


def segmentation(tiny):
    from torchvision.models import segmentation as models

    size, batch = (32, 2) if tiny else (256, 16)
    make = models.lraspp_mobilenet_v3_large if tiny else models.fcn_resnet50

    def loss(output, masks):
        return F.cross_entropy(output["out"], masks)

    return Task(
        text=f"torchvision's fcn_resnet50, {batch} × 3 × {size} × {size}, AdamW, bf16",
        model=lambda: make(weights=None, weights_backbone=None, num_classes=21),
        columns=lambda count: (torch.randn(count, 3, size, size), torch.randint(21, (count, size, size))),
        batch=batch,
        loss_of=lambda model, batch: loss(model(batch[0]), batch[1]),
        learner={"loss": loss},
        precision="bf16",
    )


def detection(tiny):
    from torchvision.models.detection import FCOS, fcos_resnet50_fpn
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    size, batch = (64, 2) if tiny else (320, 8)
    options = {"num_classes": 21, "min_size": size, "max_size": size}

    def make_model():
        if not tiny:
            return fcos_resnet50_fpn(weights=None, weights_backbone=None, trainable_backbone_layers=5, **options)
        backbone = nn.Conv2d(3, 32, 16, 16)
        backbone.out_channels = 32
        return FCOS(backbone, anchor_generator=AnchorGenerator(((16,),), ((1.0,),)), **options)

    def sample():
        corners = torch.rand(5, 2) * size / 2
        boxes = torch.cat((corners, corners + 8 + torch.rand(5, 2) * size / 2), 1)
        return torch.rand(3, size, size), {"boxes": boxes, "labels": torch.randint(1, 21, (5,))}

    def loader(count):
        samples = [sample() for _ in range(count)]
        return DataLoader(samples, batch_size=batch, shuffle=True, collate_fn=collate, **loader_options(tiny))

    return Task(
        text=f"torchvision's fcos_resnet50_fpn, {batch} × 3 × {size} × {size}, 5 boxes each, AdamW",
        model=make_model,
        loader=loader,
        batch=batch,
        loss_of=lambda model, batch: sum(model(*batch).values()),
    )


def collate(samples):
    return tuple(zip(*samples, strict=True))


def loader_options(tiny):
    return {} if tiny else {"num_workers": 2, "pin_memory": True, "persistent_workers": True}


def graph(tiny):
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GIN, global_mean_pool

    nodes, batch, width = (10, 4, 16) if tiny else (30, 256, 256)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = GIN(16, width, num_layers=5, norm="batch_norm"), nn.Linear(width, 10)

        def forward(self, x, edge_index, batch, size):
            return self.head(global_mean_pool(self.body(x, edge_index), batch, size))

    def step(model, batch):
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y)

    def sample():
        count = int(torch.randint(nodes // 2, nodes, ()))
        return Data(x=torch.randn(count, 16), edge_index=torch.randint(count, (2, 4 * count)), y=torch.randint(10, ()))

    return Task(
        text=f"PyG's GIN, 5 layers of {width}, {batch} graphs of about {3 * nodes // 4} nodes, AdamW",
        model=Net,
        loader=lambda count: GraphLoader(
            [sample() for _ in range(count)], batch_size=batch, shuffle=True, **loader_options(tiny)
        ),
        batch=batch,
        loss_of=step,
        learner={"step": step},
    )


def diffusion(tiny):
    from diffusers import DDPMScheduler, UNet2DModel

    size, batch = (8, 4) if tiny else (32, 64)
    widths = (8, 16) if tiny else (128, 256, 256, 256)  # that of DDPM on CIFAR-10
    down = ["DownBlock2D"] * len(widths)
    up = ["UpBlock2D"] * len(widths)
    down[1], up[-2] = "AttnDownBlock2D", "AttnUpBlock2D"
    noising = DDPMScheduler(num_train_timesteps=1000)

    def step(unet, batch):
        (images,) = batch
        noise, time = torch.randn_like(images), torch.randint(1000, (len(images),), device=images.device)
        return F.mse_loss(unet(noising.add_noise(images, noise, time), time).sample, noise)

    return Task(
        text=f"diffusers' UNet of DDPM for CIFAR-10, {batch} × 3 × {size} × {size}, AdamW, bf16",
        model=lambda: UNet2DModel(
            sample_size=size,
            block_out_channels=widths,
            down_block_types=down,
            up_block_types=up,
            norm_num_groups=8,
            attention_head_dim=8 if tiny else 64,
        ),
        columns=lambda count: (torch.randn(count, 3, size, size),),
        batch=batch,
        loss_of=step,
        learner={"step": step},
        precision="bf16",
    )


def gan(tiny):
    import stoker
    from stoker import optim

    width, batch, betas = 8 if tiny else 64, 4 if tiny else 128, (0.5, 0.999)

    def block(make, before, after):
        return [make(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after)]

    def make_model():
        up, down, w = nn.ConvTranspose2d, nn.Conv2d, width
        generator = [up(100, 8 * w, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * w), nn.ReLU()]
        for factor in (8, 4, 2):
            generator += [*block(up, factor * w, factor * w // 2), nn.ReLU()]
        critic = [down(3, w, 4, 2, 1), nn.LeakyReLU(0.2)]
        for factor in (1, 2, 4):
            critic += [*block(down, factor * w, 2 * factor * w), nn.LeakyReLU(0.2)]
        return nn.ModuleDict(
            {
                "generator": nn.Sequential(*generator, up(w, 3, 4, 2, 1), nn.Tanh()),
                "critic": nn.Sequential(*critic, down(8 * w, 1, 4, 1, 0), nn.Flatten(0)),
            }
        )

    def draw(model, real):
        return model["generator"](torch.randn(len(real), 100, 1, 1, device=real.device))

    def critic_loss(critic, real, fake):
        return F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()

    def step(model, batch):
        (real,) = batch
        fake = draw(model, real)
        yield stoker.Objective("critic", critic_loss(model["critic"], real, fake))
        yield stoker.Objective("generator", F.softplus(-model["critic"](fake)).mean())

    def make_update(model):
        adams = {
            name: torch.optim.Adam(part.parameters(), lr=2e-4, betas=betas, fused=True) for name, part in model.items()
        }

        def update(batch):
            (real,) = batch
            fake = draw(model, real)
            adams["critic"].zero_grad()
            first = critic_loss(model["critic"], real, fake)
            first.backward()
            adams["critic"].step()
            adams["generator"].zero_grad()
            second = F.softplus(-model["critic"](fake)).mean()
            second.backward()
            adams["generator"].step()
            return (first + second).detach()

        return update

    adam = optim.Adam(betas=betas)
    return Task(
        text=f"DCGAN, {batch} × 3 × 64 × 64, two Adams",
        model=make_model,
        columns=lambda count: (torch.rand(count, 3, 64, 64) * 2 - 1,),
        batch=batch,
        make_update=make_update,
        learner={"step": step, "optimizer": {"critic": adam, "generator": adam}},
        lr=2e-4,
    )


def vae(tiny):
    width, batch = (16, 8) if tiny else (1024, 256)

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 64))
            self.decoder = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 784))

    def parts(model, batch):
        (images,) = batch
        mean, log_variance = model.encoder(images).chunk(2, 1)
        latent = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        pixels = F.binary_cross_entropy_with_logits(model.decoder(latent), images, reduction="none").sum(1).mean()
        return pixels, -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()

    def step(model, batch):
        pixels, kl = parts(model, batch)
        return {"loss": pixels + kl, "kl": kl}

    return Task(
        text=f"an MLP of width {width}, {batch} × 784, AdamW; KL recorded by stoker",
        model=VAE,
        columns=lambda count: (torch.rand(count, 784),),
        batch=batch,
        loss_of=lambda model, batch: sum(parts(model, batch)),
        learner={"step": step},
        lr=1e-3,
    )


def distillation(tiny):
    import timm

    import stoker

    size, batch = (32, 4) if tiny else (160, 64)
    names = ("test_resnet", "test_resnet") if tiny else ("resnet18", "resnet50")

    def make_model():
        student, teacher = (timm.create_model(name, num_classes=100) for name in names)
        return nn.ModuleDict({"student": student, "teacher": stoker.freeze(teacher, eval=True)})

    def step(model, batch):
        images, labels = batch
        with torch.no_grad():
            answers = model["teacher"](images).float().div(2).log_softmax(1)
        logits = model["student"](images).float()
        soft = F.kl_div(logits.div(2).log_softmax(1), answers, reduction="batchmean", log_target=True)
        return 4 * soft + F.cross_entropy(logits, labels)

    return Task(
        text=f"timm's {names[0]} learns from {names[1]}, {batch} × 3 × {size} × {size}, AdamW, bf16",
        model=make_model,
        columns=image_columns(size, 100),
        batch=batch,
        loss_of=step,
        learner={"step": step},
        precision="bf16",
    )


def recurrent_lm(tiny):
    vocabulary, width, length, batch = (64, 16, 8, 4) if tiny else (10_000, 1024, 64, 64)

    class RecurrentLM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
            self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
            self.register_buffer("state", torch.zeros(2, batch, width))

        def forward(self, tokens):
            output, state = self.rnn(self.embedding(tokens), self.state.clone())
            self.state.copy_(state.detach())
            return self.head(output).transpose(1, 2)

    def columns(count):
        tokens = torch.randint(vocabulary, (count, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Task(
        text=f"a GRU of 2 × {width} with carried state, {batch} × {length} tokens, AdamW, clipped to norm 1",
        model=RecurrentLM,
        columns=columns,
        batch=batch,
        loss_of=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        learner={"loss": nn.CrossEntropyLoss()},
        clip_norm=1.0,
        shuffle=False,
    )


TASKS = {
    "text_classification": text,
    "causal_lm": causal_lm,
    "lora": lora,
    "image_classification": timm_task("resnet50", "test_resnet"),
    "image_classification_vit": timm_task("vit_small_patch16_224", "test_vit"),
    "segmentation": segmentation,
    "detection": detection,
    "graph_classification": graph,
    "diffusion": diffusion,
    "gan": gan,
    "vae": vae,
    "distillation": distillation,
    "recurrent_lm": recurrent_lm,
}
