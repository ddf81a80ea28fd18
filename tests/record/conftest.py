import pytest

from stoker.record import Run


@pytest.fixture
def run(tmp_path):
    """A run that this process writes."""
    run = Run.create(tmp_path / "digits", config={"lr": 0.1}, facts={"seed": 3})
    yield run
    run.close()
