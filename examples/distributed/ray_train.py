"""The same training with Ray Train: Ray starts the processes and creates their process group, and stoker uses it.

pip install "ray[train]" && python ray_train.py
"""

import os
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from train import main


def work(config: dict[str, str]) -> None:
    main(Path(config["run"]))


if __name__ == "__main__":
    run = Path(os.environ.get("RUN", "runs/digits")).absolute()  # on a file system that every node sees
    ray.init(runtime_env={"working_dir": ".", "excludes": ["runs"]})  # workers import train.py too
    gpus = int(ray.cluster_resources().get("GPU", 0))
    trainer = TorchTrainer(
        work,
        train_loop_config={"run": str(run)},
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=600),
        scaling_config=ScalingConfig(num_workers=gpus or 2, use_gpu=gpus > 0),
        run_config=RunConfig(
            name=run.name,
            storage_path=str(run.parent / "ray"),  # Ray's own files
            failure_config=FailureConfig(max_failures=3),  # resume=True continues after each
        ),
    )
    trainer.fit()
