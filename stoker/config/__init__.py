"""config: annotated classes whose values are checked, compared, saved and loaded. `Config` is the base class.

Every package may import this one. Loading a file runs no code and imports nothing by name.
"""

from stoker.config._config import Config

__all__ = ["Config"]
