"""Where the lines of a broker's log go, and in which form: standard error or a file of bounded size, as text
or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from nilometer.broker.settings.log_settings import ROOT, LogSettings
from nilometer.config import ConfigError

MESSAGE_MAX = 2_000
FIELD_MAX = 500
"""A longer field of a decision is cut."""
LINES_PER_SECOND = 50
"""So many lines about connections are written in a second. A client without any right may cause thousands,
which would fill a disk, or push all others out of the files."""
ABOUT_CONNECTIONS = ("nilometer.broker.connections", "nilometer.tls")
"""The loggers of these lines."""


def shortened(text: str, characters: int) -> str:
    """Return ``text``, cut after so many characters; what is cut off is counted."""
    more = len(text) - characters
    return text if more <= 0 else f"{text[:characters]}… ({more} more characters)"


class BoundedMessages(logging.Filter):
    """Cuts what is long in the message and the fields of a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        record.msg, record.args = shortened(message, MESSAGE_MAX), None
        if (fields := getattr(record, "fields", None)) is not None:
            record.fields = {
                name: shortened(value, FIELD_MAX) if isinstance(value, str) else value
                for name, value in fields.items()
            }
        return True


class BoundedLines(logging.Filter):
    """Leaves out the lines above ``LINES_PER_SECOND``; the next one says how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._written = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if (second := int(record.created)) != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_PER_SECOND:
            self._left_out += 1
            return False
        self._written += 1
        if self._left_out:
            record.msg = f"{self._left_out} lines about connections were left out. {record.getMessage()}"
            record.args, self._left_out = None, 0
        return True


def configure_log(settings: LogSettings, broker_id: int) -> None:
    """Send the lines of all loggers to where ``settings`` say. Raises ConfigError if that is impossible."""
    handler = _handler(settings)
    handler.addFilter(BoundedMessages())
    handler.setFormatter(JsonFormatter(broker_id) if settings.is_json else _text_formatter(broker_id))
    logging.basicConfig(handlers=[handler], level=settings.levels[ROOT])
    bounded_lines = BoundedLines()
    for name in ABOUT_CONNECTIONS:
        logging.getLogger(name).addFilter(bounded_lines)
    for name, level in settings.levels.items():
        if name != ROOT:
            logging.getLogger(name).setLevel(level)


def _handler(settings: LogSettings) -> logging.Handler:
    if settings.path is None:
        return logging.StreamHandler(sys.stderr)
    from nilometer.broker.bounded_log_file import BoundedLogFile  # loads sockets and pickle

    try:
        return BoundedLogFile(settings.path, settings.max_bytes, settings.files)
    except OSError as error:
        raise ConfigError(
            "nilometer.log.file", f"cannot write nilometer.log.file {settings.path}: {error}"
        ) from None


def _text_formatter(broker_id: int) -> logging.Formatter:
    return logging.Formatter(f"%(asctime)s %(levelname)s [broker {broker_id}] %(message)s")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "broker": self._broker_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("event", "fields"):
            if (value := getattr(record, name, None)) is not None:
                document[name] = value
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str, ensure_ascii=False)
