"""hub: a folder with a trained model as the Hugging Face Hub expects it, with a model card from the record of the run.

    save_pretrained(fitted, "digits-cnn", task="image-classification", dataset="digits", license="mit")
    push("digits-cnn", "somebody/digits-cnn")  # the only function here that uses the network

The folder has `model.safetensors`, `config.json` and `README.md`, the card. `stoker.load(model, folder /
"model.safetensors")` loads the weights again.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker import weights
from stoker._files import write_atomically, write_json
from stoker.config import Config
from stoker.errors import InvalidArgument, WrongType, explain_missing
from stoker.learner import Fitted

__all__ = ["push", "save_pretrained"]

_CARD, _CONFIG, _WEIGHTS = "README.md", "config.json", "model.safetensors"


def save_pretrained(
    fitted: Fitted,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    config: Config | Mapping[str, Any] | None = None,
    task: str | None = None,
    dataset: str | None = None,
    license: str | None = None,
    tags: Sequence[str] = (),
    text: str = "",
) -> Path:
    """Writes the weights, the config and a model card into a folder, and returns its path.

    >>> import stoker, torch
    >>> from torch import nn
    >>> x = torch.randn(32, 3)
    >>> fitted = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0).fit((x, x[:, :1]), epochs=1, show=False)
    >>> sorted(path.name for path in save_pretrained(fitted, "linear").iterdir())
    ['README.md', 'config.json', 'model.safetensors']

    The card has the metrics of the epoch whose weights were kept, and how the model was trained. With `task` (such as
    "image-classification") and `dataset`, the Hub shows the metrics too. `config` is what `config.json` holds; by
    default the config of a model that has one, as those of Transformers do. `text` is added to the card. Existing files
    of these names are replaced.
    """
    if not isinstance(fitted, Fitted):
        raise WrongType(f"save_pretrained takes the result of a fit (a Fitted), got {type(fitted).__name__}")
    if (task is None) != (dataset is None):
        raise InvalidArgument(f"the Hub needs both task and dataset to show metrics; got task={task!r}, {dataset=}")
    folder = Path(folder)
    model, name = fitted.model, name or folder.name
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(model, folder / _WEIGHTS)
    settings: Any = config if config is not None else getattr(model, "config", None)
    settings = settings.to_dict() if hasattr(settings, "to_dict") else dict(settings or {})
    write_json(folder / _CONFIG, {"architectures": [type(model).__name__], **settings})
    card = _front_matter(fitted, name, task, dataset, license, tags) + _body(fitted, name, text)
    write_atomically(folder / _CARD, lambda file: file.write(card.encode()))
    return folder


def push(
    folder: str | os.PathLike[str],
    repo: str,
    *,
    private: bool | None = None,
    message: str = "Upload a model trained with stoker",
    api: Any = None,
) -> str:
    """Uploads a folder of `save_pretrained` to the Hugging Face Hub, and returns the address of the commit.

    It creates the repository (`repo` is "user/name") if there is none. The token is the one that `hf auth login` has
    stored, or that of the `api`, a `huggingface_hub.HfApi`. Needs `stoker[hub]`.
    """
    folder = Path(folder)
    missing = [name for name in (_WEIGHTS, _CONFIG, _CARD) if not (folder / name).is_file()]
    if missing:
        raise InvalidArgument(f"{str(folder)!r} has no {', '.join(missing)}; write it with save_pretrained first")
    if api is None:
        with explain_missing('push needs huggingface_hub: pip install "stoker[hub]"'):
            import huggingface_hub
        api = huggingface_hub.HfApi()
    api.create_repo(repo, private=private, exist_ok=True)
    files = [_WEIGHTS, _CONFIG, _CARD]
    commit = api.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=files, commit_message=message)
    return str(getattr(commit, "commit_url", commit))


def _metrics(fitted: Fitted) -> dict[str, float]:
    """The metrics of the validation sets in the epoch whose weights the model has; without any, those of training."""
    rows = fitted.record.rows
    epoch = fitted.best.epoch if fitted.best is not None else max(rows, default=0)
    finite = {name: value for name, value in rows.get(epoch, {}).items() if "/" in name and math.isfinite(value)}
    valid = {name: value for name, value in finite.items() if name.partition("/")[0] not in ("train", "lr")}
    return valid or {name: value for name, value in finite.items() if name.startswith("train/")}


def _front_matter(
    fitted: Fitted, name: str, task: str | None, dataset: str | None, license: str | None, tags: Sequence[str]
) -> str:
    """The YAML at the start of the card; its values are JSON, which is YAML."""
    fields: dict[str, Any] = {"library_name": "stoker", "tags": ["stoker", "pytorch", *tags]}
    if license is not None:
        fields["license"] = license
    if task is not None:
        found = _metrics(fitted).items()
        measured = [{"type": key.partition("/")[2], "name": key, "value": value} for key, value in found]
        result = {"task": {"type": task}, "dataset": {"type": dataset, "name": dataset}, "metrics": measured}
        fields |= {"pipeline_tag": task, "datasets": [dataset]}
        fields["model-index"] = [{"name": name, "results": [result]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _body(fitted: Fitted, name: str, text: str) -> str:
    model, begin, best = type(fitted.model).__name__, fitted.record.begin, fitted.best
    count = sum(parameter.numel() for parameter in fitted.model.parameters())
    lines = [f"# {name}", "", *([text, ""] if text else [])]
    lines += [f"`{model}` with {count:,} parameters, trained with stoker for {fitted.epochs} epochs and "]
    lines[-1] += f"{fitted.updates:,} updates." + (f" {fitted.stopped}." if fitted.stopped else "")
    kept = "last epoch" if best is None else f"epoch {best.epoch}, the best by {best.name}"
    lines += ["", f"## Metrics ({kept})", "", "| metric | value |", "|---|--:|"]
    lines += [f"| {metric} | {value:.4g} |" for metric, value in _metrics(fitted).items()]
    if plan := [line for line in begin.extra.get("plan", ()) if not line.startswith("device")] if begin else []:
        lines += ["", "## Training", "", "```text", *plan, "```"]
    lines += ["", "## Use", "", "```python", "import stoker", ""]
    lines += [f"model = {model}(...)  # the class is not part of this repository"]
    lines += [f'stoker.load(model, "{_WEIGHTS}")', "```", ""]
    return "\n".join(lines)
