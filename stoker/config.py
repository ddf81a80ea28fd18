"""Configs: annotations in, a frozen and serialisable value out."""

import dataclasses
from typing import dataclass_transform


@dataclass_transform(frozen_default=True)
class Config:
    """A subclass with annotations is a frozen dataclass that can be saved, loaded and compared."""

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
