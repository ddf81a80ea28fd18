"""From a list of contenders to a table: each measured in turn, put together, refused where it did other work."""

import statistics

from benchmarks._bars import verdicts
from benchmarks._contenders import CONTENDERS
from benchmarks._harness import results_of, spread
from benchmarks._measure import refusals

WHOLE = ("µs per update", "start, s", "program, s")  # of every pass; the rest is the first one's


def run(module, work, names, passes, *, environment=None, seconds=None, after=None):
    """The results by contender, and the reasons of those that fell over; `after` is told after each task."""
    found, failed = {}, {}
    tasks = [(name, work.name, work.device, "tiny" if work.tiny else "full") for _ in range(passes) for name in names]
    for (name, *_), result, failure in results_of(module, tasks, environment=environment, seconds=seconds):
        if failure is None:
            times = {key: result[key] if isinstance(result[key], list) else [result[key]] for key in WHOLE}
            earlier = found.get(name, {key: [] for key in WHOLE})
            found[name] = {**result, **earlier, **{key: earlier[key] + times[key] for key in WHOLE}}
        else:
            failed[name] = (failure.strip() or "no words").splitlines()[-1]
            print(f"  {name} fell over: {failed[name]}")
        if after is not None:
            after(name, found, failed)
    return found, failed


def report(work, found):
    """A table with ratios to the plain loops, the bars, and what is refused."""
    median = {name: statistics.median(each["µs per update"]) for name, each in found.items()}
    rivals = [name for name in ("dataloader", "indexing", "compile") if name in found]
    heads = "".join(f"{'× ' + name:>13}" for name in rivals)
    unit = "samples/s" if work.tokens == 1 else "tokens/s"
    print(f"\n{work.name}: {work.text}; {work.device}{', one thread' if work.device == 'cpu' else ''}")
    print(f"  {'':<42} {'µs/update':>9} {'spread':>15}{heads}  {unit:>10}{_TAIL}")
    for name in CONTENDERS:
        if name in found:
            ratios = "".join(f"{median[name] / median[other]:13.3f}" for other in rivals)
            pace = work.samples * work.tokens / (work.updates * median[name] * 1e-6)
            times = spread(found[name]["µs per update"])
            print(f"  {CONTENDERS[name].label:<42}  {times}{ratios}  {pace:10,.0f}{_tail(found[name])}")
    for line in verdicts(sound(work, found), work.device, work.name):  # other work meets no bar
        print(f"  {line}")
    for line in refusals(found, work):
        print(f"  REFUSED: {line}")


_TAIL = "  start, s  program, s  memory, MB  frames     loss"


def _tail(each):
    start, program = (statistics.median(each[key]) for key in ("start, s", "program, s"))
    memory = each["memory, MB"].get("reserved", next(iter(each["memory, MB"].values())))
    frames = "" if each["frames"] is None else each["frames"]
    return f"  {start:8.2f}  {program:10.2f}  {memory:10.0f}  {frames:>6}  {each['loss']:7.4f}"


def sound(work, found):
    """What was measured without those that did other work."""
    refused = {line.split()[0] for line in refusals(found, work)}
    return {name: each for name, each in found.items() if name not in refused}
