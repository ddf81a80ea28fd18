"""The models of the workloads: an MLP, the CNN of Burn's guide, ResNet-18 and a ViT for small images, GPT-2."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*widths):
    """Linear layers of these widths with a ReLU between."""
    layers = [nn.Linear(*pair) for pair in pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


class Digits(nn.Module):
    """The Burn guide's CNN: [batch, 28, 28] → [batch, 10]."""

    def __init__(self, hidden=512, dropout=0.5):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.pool, self.dropout = nn.AdaptiveAvgPool2d(8), nn.Dropout(dropout)
        self.linear1, self.linear2 = nn.Linear(16 * 8 * 8, hidden), nn.Linear(hidden, 10)

    def forward(self, images):
        x = self.dropout(self.conv1(images.unsqueeze(1)))
        x = F.relu(self.dropout(self.conv2(x)))
        x = F.relu(self.dropout(self.linear1(self.pool(x).flatten(1))))
        return self.linear2(x)


class Residual(nn.Module):
    """Two 3×3 convolutions with a skip connection."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.skip = nn.Identity()
        if stride > 1 or before != width:
            self.skip = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.skip(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images: a 3×3 stem, no pooling before the blocks; [batch, 3, 32, 32] → 10."""

    def __init__(self, width=64):
        super().__init__()
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        befores = [width, *widths[:-1]]
        self.blocks = nn.Sequential(
            *[Residual(before, after, after // before) for before, after in zip(befores, widths, strict=True)]
        )
        self.head = nn.Linear(8 * width, 10)

    def forward(self, images):
        x = self.stem(images.contiguous(memory_format=torch.channels_last))  # like the weights, for all contenders
        return self.head(self.blocks(x).mean((2, 3)))


class Block(nn.Module):
    """Causal attention and an MLP, each with a norm before it and a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width / heads]
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2, 124M by default: tokens [batch, length] → logits [batch, length, vocabulary]."""

    def __init__(self, vocabulary=50304, length=1024, depth=12, width=768, heads=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                inner = name.endswith(("out.weight", "down.weight"))  # residual branches start smaller
                nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5 if inner else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))


class ViT(nn.Module):
    """A vision transformer for 32×32 images, with patches of 4×4: [batch, 3, 32, 32] → 10."""

    def __init__(self, width=384, depth=12, heads=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(x)).mean(1))
