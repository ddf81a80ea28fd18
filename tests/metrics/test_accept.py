from types import SimpleNamespace

import pytest

from stoker import WrongType, metrics
from stoker.metrics import as_metric


def test_metrics_and_meters_come_back_as_they_are():
    for given in (metrics.Accuracy(), metrics.Throughput()):
        assert as_metric(given) is given


def test_anything_with_the_names_is_a_metric():
    own = SimpleNamespace(name="own", direction=None, unit="", on="both", init=1, update=1, merge=1, compute=1)
    assert as_metric(own) is own
    del own.merge
    with pytest.raises(WrongType, match=r"SimpleNamespace is no metric: it has no merge \(see stoker.metrics.Metric\)"):
        as_metric(own)


def right(scores, targets):
    return scores == targets


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (metrics.Accuracy, r"Accuracy is a class: write Accuracy\(\)"),
        ("accuracy", r"not the name 'accuracy': write metrics.Accuracy\(\)"),
        ("acuracy", "not the name 'acuracy'; did you mean 'accuracy'"),
        (right, r"a function is no metric yet: write metrics.of\(right\)"),
        (3, "int is no metric: it has no name, direction"),
    ],
)
def test_what_is_no_metric_is_told_how_to_become_one(given, text):
    with pytest.raises(WrongType, match=text):
        as_metric(given)
