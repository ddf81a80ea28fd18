"""Old names of `tests.learner.fits`, until nobody uses them."""

from tests.learner.fits import EVERY, damage, fit, texts
from tests.learner.fits import CopyRun as Killed
from tests.learner.fits import checkpoint_names as names
from tests.learner.fits import killed_run as killed
from tests.learner.fits import list_files as files
from tests.learner.fits import result_of as came_out
from tests.learner.fits import saved_checkpoints as saved
from tests.learner.fits import stop_after as until

__all__ = ["EVERY", "Killed", "came_out", "damage", "files", "fit", "killed", "names", "saved", "texts", "until"]
