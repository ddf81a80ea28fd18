"""Fine-tuning on texts of 20 to 500 tokens: buckets and a few lengths compared with dynamic padding.

    make bench                                  a small BERT of Transformers on the CPU
    python -m benchmarks.ragged --help          fewer samples, fewer epochs, no file

Every contender runs in a new process, on one thread. The baseline is the usual loop: a `DataLoader` in random order,
and a `collate_fn` that pads to the longest text of a batch. Times are CPU seconds per epoch after the first one;
`tokens` are those of an epoch with padding, relative to those without. Results are written to benchmarks/results/.
"""

import argparse
import json
import random
import statistics
import time
from itertools import pairwise

from benchmarks._harness import collect, save_results, use_one_thread, versions

CONTENDERS = {
    "plain": "plain torch, DataLoader, dynamic padding",
    "dynamic": "stoker, dynamic padding (pad_to=1)",
    "multiples": "stoker, bucket_by, pad_to=range(64, 513, 64)",
    "powers": 'stoker, bucket_by, pad_to="power of two"',
}
OPTIONS = {
    "dynamic": {"pad_to": 1},
    "multiples": {"pad_to": range(64, 513, 64), "bucket_by": "input_ids"},
    "powers": {"pad_to": "power of two", "bucket_by": "input_ids"},
}
BATCH, LR = 16, 1e-4


def make_rows(count):
    choose = random.Random(0)
    texts = [[choose.randint(1, 999) for _ in range(choose.randint(20, 500))] for _ in range(count)]
    return [{"input_ids": tokens, "labels": tokens[0] % 2} for tokens in texts]


def make_model():
    import torch

    from tests.torchvision_ops import declare

    declare()  # beside a CPU build of torch, torchvision's operators can't be loaded; transformers imports it
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    return BertForSequenceClassification(config)


def pad_to_longest(rows):
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def epochs_of_plain_torch(rows, epochs):
    """CPU seconds of each epoch."""
    import torch
    from torch.utils.data import DataLoader

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=pad_to_longest)
    marks = [time.process_time()]
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        marks.append(time.process_time())
    return marks, loader


def epochs_of_stoker(rows, epochs, options):
    import stoker
    from stoker.data import Loader

    loader = Loader(rows, batch_size=BATCH, shuffle=0, pad_mask="attention_mask", **options)
    marks = [time.process_time()]

    class Clock(stoker.Callback):
        def on_epoch_end(self, ctx):
            marks.append(time.process_time())

    learner = stoker.Learner(make_model(), optimizer=stoker.optim.AdamW(), lr=LR, seed=0)
    learner.fit(loader, epochs=epochs, callbacks=[Clock()], show=False)
    return marks, loader


def measure(name, count, epochs):
    use_one_thread()
    rows = make_rows(count)
    run = epochs_of_plain_torch if name == "plain" else lambda *args: epochs_of_stoker(*args, OPTIONS[name])
    marks, loader = run(rows, epochs + 1)
    shapes = [tuple(batch["input_ids"].shape) for batch in loader]
    tokens = sum(size * length for size, length in shapes) / sum(len(row["input_ids"]) for row in rows)
    seconds = [after - before for before, after in pairwise(marks[1:])]
    return {"seconds": seconds, "tokens": tokens, "shapes": len(set(shapes)), "batches": len(shapes)}


def report(found):
    base = statistics.median(found["plain"]["seconds"])
    print("\nBERT with 2 layers of 128, texts of 20 to 500 tokens; one thread, CPU seconds per epoch")
    print(f"  {'':<48} {'seconds':>8} {'× plain':>8} {'tokens':>7} {'shapes':>7} of batches")
    for name, each in found.items():
        median = statistics.median(each["seconds"])
        shapes = f"{each['shapes']:7} of {each['batches']}"
        print(f"  {CONTENDERS[name]:<48} {median:8.2f} {median / base:8.2f} {each['tokens']:7.2f} {shapes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=320, help="texts (default: 320)")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs (default: 2)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "SAMPLES", "EPOCHS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, count, epochs = arguments.measure
        print(json.dumps(measure(name, int(count), int(epochs))))
        return
    tasks = [(name, str(arguments.samples), str(arguments.epochs)) for name in CONTENDERS]
    found = {task[0]: results[0] for task, results in collect("benchmarks.ragged", tasks).items()}
    report(found)
    if not arguments.no_file:
        save_results("ragged", versions("torch", "transformers", "stoker"), bert=found)


if __name__ == "__main__":
    main()
