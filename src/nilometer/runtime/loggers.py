"""The loggers of the process, whose levels tools show and change while a broker runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol


class Loggers(Protocol):
    def levels(self) -> Mapping[str, int]:
        """Return the effective level of each logger, in numbers of :mod:`logging`, by its name; ``root`` is
        the one above all."""
        ...

    def set_level(self, name: str, level: int) -> None:
        """Set the level of a logger; with ``logging.NOTSET`` it gets that of its parent."""
        ...


class SystemLoggers:
    def levels(self) -> Mapping[str, int]:
        # The table also has placeholders, for prefixes of loggers' names.
        found = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
        return {logger.name: logger.getEffectiveLevel() for logger in (logging.root, *found)}

    def set_level(self, name: str, level: int) -> None:
        logging.getLogger(name).setLevel(level)
