"""A state as it is after a file: JSON, and copies of the tensors that know nothing of where they came from."""

import json

from stoker.checkpoint._tree import joined, split


def through(state):
    plain, tensors = split({"it": state})
    text = json.dumps(plain, allow_nan=False)
    copies = {
        part: {name: each.cpu().contiguous().clone() for name, each in own.items()} for part, own in tensors.items()
    }
    return joined(json.loads(text), copies)["it"]
