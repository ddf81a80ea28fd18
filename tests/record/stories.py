"""The old names of `tests.record.examples`, until no test uses them."""

from tests.record.examples import METRICS as METRICS
from tests.record.examples import WITHOUT_TORCH as LIGHT  # noqa: F401
from tests.record.examples import append_fit as fill  # noqa: F401
from tests.record.examples import example_record as story  # noqa: F401
from tests.record.examples import record_of as numbers  # noqa: F401
from tests.record.examples import same_floats as same  # noqa: F401
