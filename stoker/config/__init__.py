"""Annotations in, a frozen value out that is checked, compared, saved and loaded; the one type to know is `Config`.

Any room may import this one; it imports none. Reading a file runs no code and imports nothing by name.
"""

from stoker.config._config import Config

__all__ = ["Config"]
