"""Who is measured: where each contender's `fit` stands, what it needs, and what it is called."""

from importlib import import_module
from typing import NamedTuple

from benchmarks._harness import installed


class Contender(NamedTuple):
    function: str  # file and function in benchmarks/peers
    package: str
    label: str
    toy_only: bool = False
    precision: str | None = None  # in the place of the workload's
    backend: str | None = None  # of Keras
    traced: bool = False  # by a compiler: then no frames lie between the call and the loss


_KERAS = "keras.fit", "keras"
CONTENDERS = {
    "dataloader": Contender("plain.fit", "torch", "plain torch, DataLoader, loss.item()"),
    "indexing": Contender("plain.fit_indexing", "torch", "plain torch, indexing"),
    "fused": Contender("plain.fit_fused", "torch", "plain torch, indexing, fused"),
    "compile": Contender("plain.fit_compiled", "torch", "plain torch, fused, torch.compile", traced=True),
    "stoker": Contender("stoker.fit", "stoker", "stoker"),
    "stoker-tf32": Contender("stoker.fit", "stoker", "stoker, tf32", precision="tf32"),
    "stoker-compile": Contender("stoker.fit_compiled", "stoker", "stoker, compile=True", traced=True),
    "stoker-compile-tf32": Contender(
        "stoker.fit_compiled", "stoker", "stoker, compile=True, tf32", precision="tf32", traced=True
    ),
    "stoker-tuned": Contender(
        "stoker.fit_tuned", "stoker", "stoker, compile=True, tf32, cudnn.benchmark", precision="tf32", traced=True
    ),
    "stoker-fsdp": Contender("stoker.fit_fsdp", "stoker", "stoker, parallel='fsdp', a world of one"),
    "stoker-fsdp-bf16": Contender("stoker.fit_fsdp_bf16", "stoker", "… with param_dtype='bf16', reshard=False"),
    "jax": Contender("jax.fit", "jax", "JAX, jit", traced=True),
    "jax-scan": Contender("jax.fit_scan", "jax", "JAX, scan over the epoch", traced=True),
    "lightning": Contender("lightning.fit", "lightning", "Lightning: loss and metric"),
    "ignite": Contender("ignite.fit", "pytorch-ignite", "Ignite: loss and metric", toy_only=True),
    "accelerate": Contender("accelerate.fit", "accelerate", "Accelerate in a plain loop", toy_only=True),
    "skorch": Contender("skorch.fit", "skorch", "skorch: loss and metric", toy_only=True),
    "huggingface": Contender("huggingface.fit", "transformers", "Hugging Face Trainer: loss", toy_only=True),
    "keras": Contender(*_KERAS, "Keras on torch: loss and metric", toy_only=True, backend="torch"),
    "keras-jax": Contender(*_KERAS, "Keras on JAX: loss and metric", toy_only=True, backend="jax", traced=True),
}
EAGER = ("dataloader", "indexing", "fused")  # the plain eager loops: the best of them is what people can write


def fit_of(name):
    """A contender's `fit`; its library is imported here."""
    file, function = CONTENDERS[name].function.split(".")
    return getattr(import_module(f"benchmarks.peers.{file}"), function)


def why_left_out(name):
    """A line to print where a contender is not installed, else None."""
    package = CONTENDERS[name].package
    if installed(package) is None:
        return f"{name} is left out: {package} is not installed (pip install '.[bench]')"
    return None


def versions_of(names):
    """What the measured packages are, by name; torch is always among them."""
    packages = {"torch", *(CONTENDERS[name].package for name in names)}
    return {package: installed(package) for package in sorted(packages)}
