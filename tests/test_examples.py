"""The programs of examples/: each runs, prints a result that shows that the model has learned, and writes nothing."""

import os
import re
import runpy
import sys
import warnings

import pytest

from tests.conftest import ROOT
from torture.processes import Child

EXAMPLES = ROOT / "examples"
# What a program prints, with a group for each number, and what holds for these numbers if the model has learned.
RESULTS = {
    "causal_lm": (r"perplexity per byte in validation: ([0-9.]+)", lambda perplexity: perplexity < 18),
    "contrastive": (r"50 labels: (\S+) on the encoder's .*, (\S+) on the pixels", lambda own, pixels: own > pixels),
    "detection": (r"discs found in validation: (\S+)", lambda found: found > 0.8),
    "diffusion": (r"nearest real digit: (\S+), of noise (\S+)", lambda drawn, noise: drawn < noise / 2),
    "distillation": (r"accuracy: teacher (\S+), student (\S+)", lambda teacher, student: min(teacher, student) > 0.8),
    "forecasting": (r"next day: (\S+), of repeating last week: (\S+)", lambda own, naive: own < 0.9 * naive),
    "gan": (r"(\d+) of 8 clusters reached; (\d+)%", lambda reached, inside: reached >= 6 and inside > 40),
    "graph_classification": (r"validation accuracy: (\S+)", lambda accuracy: accuracy > 0.9),
    "image_classification": (r"validation accuracy: (\S+)", lambda accuracy: accuracy > 0.9),
    "lora": (r"counting down: (\S+) .* before, (\S+) after", lambda before, after: before < 0.3 and after > 0.6),
    "multi_task": (r"'digit_accuracy': (\S+), 'rotation_accuracy': (\S+)", lambda *both: min(both) > 0.75),
    "recurrent_lm": (r"(\S+) after one epoch, (\S+) at the end", lambda first, last: last < first < 12),
    "reinforce": (r"trained: (\d+) of 200 steps", lambda steps: steps > 100),
    "segmentation": (r"IoU of .*: (\S+), (\S+), (\S+)", lambda *each: sum(each) / 3 > 0.6),
    "semi_supervised": (r"(\S+) with the labels alone, (\S+) with both", lambda alone, both: both > alone + 0.02),
    "tabular": (r"recall_macro of 5 folds: (\S+)", lambda recall: recall > 0.9),
    "text_classification": (r"validation accuracy: (\S+)", lambda accuracy: accuracy > 0.9),
    "vae": (r"reconstruction (\S+), KL .*\n.*reconstruction (\S+),", lambda first, last: last < 0.9 * first),
}
FAST = ("forecasting", "gan", "vae")


def run_example(folder, program):
    os.chdir(folder)
    warnings.simplefilter("ignore", DeprecationWarning)  # of the libraries that are imported
    warnings.simplefilter("ignore", FutureWarning)
    sys.argv = [str(program)]
    runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FAST else pytest.mark.soak) for each in RESULTS]
)
def test_an_example_learns_and_writes_nothing(name, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    child = Child(run_example, folder, EXAMPLES / f"{name}.py", prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()[-6000:]
    pattern, has_learned = RESULTS[name]
    found = re.search(pattern, child.printed())
    assert found, child.printed()[-2000:]
    assert has_learned(*(float(number.rstrip(",}")) for number in found.groups())), found.group()
    assert not list(folder.iterdir())


def test_every_example_is_tested_listed_and_shorter_than_60_lines():
    page = (ROOT / "docs" / "examples.md").read_text()
    others = {"draw_digits", "own_loop"}  # a picture of the documentation, and a program with a live display
    assert {path.stem for path in EXAMPLES.glob("*.py")} - others == set(RESULTS)
    for name in RESULTS:
        assert f"](howto/{name}.md)" in page, name
        assert f'"examples/{name}.py"' in (ROOT / "docs" / "howto" / f"{name}.md").read_text(), name
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60, name
