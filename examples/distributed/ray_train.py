"""The same training with Ray Train: Ray starts the processes and creates their process group, and stoker uses it.

pip install "ray[train]" && python ray_train.py
"""

from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from train import main


def work(config: dict[str, str]) -> None:
    main(Path(config["run"]))


if __name__ == "__main__":
    ray.init(runtime_env={"working_dir": "."})  # workers import train.py too
    trainer = TorchTrainer(
        work,
        train_loop_config={"run": str(Path("runs/digits").absolute())},  # on a file system that every node sees
        torch_config=TorchConfig(backend="nccl", timeout_s=600),  # "gloo" without GPUs
        scaling_config=ScalingConfig(num_workers=4, use_gpu=True),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),  # resume=True continues after each
    )
    trainer.fit()
