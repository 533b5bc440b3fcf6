"""A broker as an operating-system process: settings, its own log, event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nilometer.broker.broker import Broker, StartFailed
from nilometer.broker.settings.config import (
    BrokerConfig,
    is_sensitive,
    notices_at_start,
    warnings_at_start,
)
from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.settings.logging_settings import ROOT, LogSettings
from nilometer.broker.settings.recorder import recorded_settings
from nilometer.broker.status_file import NOT_READY, BrokerStatusFile
from nilometer.config import ConfigError, parse_properties
from nilometer.runtime import Runtime
from nilometer.runtime.event_loop import collect_old_garbage, give_back_freed_memory, on_loop_error

STANDARD_STREAMS = (1, 2)


def bounded_log_file(path: str, max_bytes: int, files: int) -> logging.Handler:
    """Open a log file that is renamed at ``max_bytes``; ``files`` files in all, the oldest is ``FILE.<n>``.

    If standard output and error go to the same file, as `nilometer up` starts a broker, they follow it: what
    an interpreter or a library writes there is in the current file, and no renamed file grows.
    """
    from logging.handlers import RotatingFileHandler  # with pickle and queues: only if there is a file

    handler = RotatingFileHandler(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8")
    opened = os.stat(path)
    followers = [number for number in STANDARD_STREAMS if _is_open_on(number, opened)]

    def rotate(source: str, destination: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the file was deleted meanwhile
            os.rename(source, destination)
        with open(source, "ab") as begun:  # the handler goes on in the same file
            for number in followers:
                os.dup2(begun.fileno(), number)

    handler.rotator = rotate
    return handler


def _is_open_on(descriptor: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file)
    except OSError:  # it is closed
        return False


# Where the lines of a broker's log go, and in which form: standard error or a file of bounded size, as text
# or JSON.

MESSAGE_MAX = 2_000
FIELD_MAX = 500
"""A longer field of a decision is cut."""
LINES_PER_SECOND = 50
"""So many lines about each of the subjects in ``BOUNDED`` are written in a second. A client may cause
thousands, which would fill a disk, or push all others out of the files."""
ABOUT_CONNECTIONS = ("nilometer.broker.connections", "nilometer.tls")
"""The loggers of these lines."""
ABOUT_LOGINS = ("nilometer.broker.authentication",)
BOUNDED = {
    "connections": ABOUT_CONNECTIONS,
    "logins": ABOUT_LOGINS,
    "records that cannot be read": ("nilometer.broker.records",),
    "groups": ("nilometer.broker.groups",),
    "transactions": ("nilometer.broker.transactions",),
}
"""What lines are about that a client may cause with each request, and their loggers."""
ALL_WARNINGS_ABOUT = ("groups", "transactions")
"""Their warnings and errors are always written."""


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

    def __init__(self, about: str) -> None:
        super().__init__()
        self._about = about
        self._level_max = logging.INFO if about in ALL_WARNINGS_ABOUT else logging.CRITICAL
        self._second = 0
        self._written = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > self._level_max:
            return True
        if (second := int(record.created)) != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_PER_SECOND:
            self._left_out += 1
            return False
        self._written += 1
        if self._left_out:
            record.msg = f"{self._left_out} lines about {self._about} were left out. {record.getMessage()}"
            record.args, self._left_out = None, 0
        return True


def configure_log(settings: LogSettings, broker_id: int) -> None:
    """Send the lines of all loggers to where ``settings`` say. Raises ConfigError if that is impossible."""
    handler = _handler(settings)
    handler.addFilter(BoundedMessages())
    handler.setFormatter(JsonFormatter(broker_id) if settings.is_json else _text_formatter(broker_id))
    logging.basicConfig(handlers=[handler], level=settings.levels[ROOT])
    for about, loggers in BOUNDED.items():
        bounded_lines = BoundedLines(about)
        for name in loggers:
            logging.getLogger(name).addFilter(bounded_lines)
    for name, level in settings.levels.items():
        if name != ROOT:
            logging.getLogger(name).setLevel(level)


def _handler(settings: LogSettings) -> logging.Handler:
    if settings.path is None:
        return logging.StreamHandler(sys.stderr)

    try:
        return bounded_log_file(settings.path, settings.max_bytes, settings.files)
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


# A broker as an operating-system process: settings, event loop, signals, exit code.
#
# Exit codes: 0 stopped by a signal; 1 failed while starting or running, or was fenced; 2 the settings are
# wrong.

logger = logging.getLogger("nilometer.broker")


GARBAGE_THRESHOLDS = (5_000, 5, 2**31 - 1)
"""A collection holds the event loop while it walks over all objects of its generation. The second one has at
most 25,000 of them, of a large request, say: some 3 ms. The oldest one has all: the broker chooses its moment
(:func:`collect_old_garbage`)."""
SWITCH_INTERVAL_S = 0.001
"""How long a computing thread (compaction, recovery) may hold the interpreter before the event loop runs."""


def run_broker(
    config_path: Path | None,
    overrides: Mapping[str, str],
    ready_fd: int | None,
    status_path: Path | None = None,
    make_runtime: Callable[[], Runtime] = Runtime.system,
) -> int:
    """Run a broker until SIGINT or SIGTERM; return the exit code.

    ``host:port`` of the first listener is written to descriptor ``ready_fd`` once clients are served. If the
    broker is fenced, or fails while starting or running, it writes a JSON object with ``state`` (``fenced``
    or ``failed``) and ``reason`` to the file ``status_path``. The file remains after the process has ended;
    the next broker that is started with this path removes it first. ``make_runtime`` is called in the event
    loop.
    """
    status = BrokerStatusFile(status_path)
    status.clear()
    try:
        config = load_config(config_path, overrides)
        configure_log(config.log, config.node_id)
    except ConfigError as error:
        print(f"nilometer broker: {error}", file=sys.stderr)
        return 2
    _allow_many_descriptors()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for notice in notices_at_start(config):
        logger.info("%s", notice)
    for warning in warnings_at_start(config):
        logger.warning("%s", warning)
    try:
        return _run(_serve_recorded(config, ready_fd, status, make_runtime))
    except StartFailed as error:
        status.write("failed", str(error))
        print(f"nilometer broker: {error}", file=sys.stderr)
        return 1


def load_config(config_path: Path | None, overrides: Mapping[str, str]) -> BrokerConfig:
    """Return the settings in a file and in overrides, which win. Raises ConfigError."""
    texts: dict[str, str] = {}
    if config_path is not None:
        try:
            text = config_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(config_path), f"cannot read {config_path}: {error}") from None
        texts.update(parse_properties(text, str(config_path)))
    texts.update(overrides)
    return BrokerConfig(texts)


def _allow_many_descriptors() -> None:
    """Raise the limit of descriptors to the maximum: connections and segments need one each, and the default
    limit of shells (often 1,024) is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems report an unlimited maximum and reject it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:  # there is no uvloop for this system
        return asyncio.run(main)
    return uvloop.run(main)


def tidying(broker: Broker) -> Sequence[asyncio.Future[None]]:
    """Begin what a process does beside its broker."""
    turns = broker.turns
    return _tidying(broker, lambda: turns.note("garbage collection"))


def tidying_unnoted(broker: Broker) -> Sequence[asyncio.Future[None]]:
    """The same of a broker that is recorded: its watchdog is told nothing that replay does not tell it."""
    return _tidying(broker, lambda: None)


def _tidying(broker: Broker, on_collected: Callable[[], None]) -> Sequence[asyncio.Future[None]]:
    turns = broker.turns
    return [
        asyncio.ensure_future(give_back_freed_memory()),
        asyncio.ensure_future(collect_old_garbage(lambda: turns.has_long_work, on_collected)),
    ]


async def _serve_recorded(
    config: BrokerConfig,
    ready_fd: int | None,
    status: BrokerStatusFile,
    make_runtime: Callable[[], Runtime],
) -> int:
    """Serve; record the broker's input if the settings say so."""
    settings = config.recorder
    if settings is None:
        return await serve(config, ready_fd, status, make_runtime())
    from nilometer.recorder.folder import new_header, new_recording  # few brokers are recorded
    from nilometer.recorder.recording import record
    from nilometer.recorder.tape import Tape
    from nilometer.recorder.tape_file import SlotFile

    runtime = make_runtime()
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    try:
        path, number = new_recording(
            settings.folder, config.node_id, runtime.clock.wall_ms(), settings.recording_bytes_max
        )
        header = new_header(
            recorded_settings(config.given),
            [*filter(is_sensitive, config.given)],
            runtime.clock,
            runtime.open_files_max,
            runtime.disk.boot_id(),
            number,
        )
        tape = Tape(SlotFile(path, header, settings.recording_bytes_max))
    except OSError as error:
        logger.error("This broker is not recorded: %s", error)
        return await serve(config, ready_fd, status, runtime)
    logger.info("The input of this broker is recorded in %s", path)
    tape.on_end = lambda reason: logger.warning("The recording %s has ended: %s", path, reason)
    asyncio.get_running_loop().call_later(
        settings.minutes_max * 60, tape.end, f"it has reached its bound of {settings.minutes_max} minutes"
    )
    return await record(
        lambda recorded, on_host: serve(
            config, ready_fd, status, recorded, lambda broker: on_host(lambda: tidying_unnoted(broker))
        ),
        runtime,
        tape,
        config.log_dirs,
    )


async def serve(
    config: BrokerConfig,
    ready_fd: int | None,
    status: BrokerStatusFile,
    runtime: Runtime,
    tidy: Callable[[Broker], Sequence[asyncio.Future[None]]] = tidying,
    make_broker: Callable[[BrokerConfig, Runtime], Broker] = Broker,
) -> int:
    """Start a broker, and stop it after SIGINT or SIGTERM; return the exit code. Raises StartFailed.

    ``tidy`` begins what the process does beside it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = make_broker(config, runtime)
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    tidied: Sequence[asyncio.Future[None]] = ()
    try:
        await _first(starting, stopping)
        if starting.done():
            try:
                await starting
            except StartFailed:
                if broker.fenced is None:
                    raise
        if starting.done() and broker.fenced is None:
            announced, ready_fd = _announce(broker, ready_fd), None
            if not announced:
                return 1
            # Most current objects stay until the process ends: exclude them from garbage collections.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GARBAGE_THRESHOLDS)
            tidied = tidy(broker)
            await broker.wait_stopped(stop)
    finally:
        for task in tidied:
            task.cancel()
        starting.cancel()
        stopping.cancel()
        await broker.stop()
    if broker.fenced is not None:
        await _stay_fenced(broker.fenced, ready_fd, status, stop)
    elif broker.failure is not None:
        status.write("failed", broker.failure)
    return 1 if broker.failure else 0


async def _stay_fenced(
    reason: str, ready_fd: int | None, status: BrokerStatusFile, stop: asyncio.Event
) -> None:
    """Report that the broker is fenced, and wait for ``stop`` (SIGINT or SIGTERM).

    The broker itself has stopped: no port, no session, no lock on its directories. The process stays, since a
    supervisor would restart it, and only another version helps.
    """
    status.write("fenced", reason)
    if ready_fd is not None:
        with contextlib.suppress(OSError):  # the starting command no longer waits for it
            os.write(ready_fd, f"{NOT_READY}{reason}\n".encode())
            os.close(ready_fd)
    logger.critical("Fenced until this broker is restarted; stop it with SIGTERM or Ctrl-C: %s", reason)
    await stop.wait()


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of ``futures`` is done, whatever its outcome."""
    done = asyncio.Event()
    for future in futures:
        future.add_done_callback(lambda _: done.set())
    await done.wait()


def _announce(broker: Broker, ready_fd: int | None) -> bool:
    """Write the first listener's address to ``ready_fd``, and the URL of the metrics if there are any.

    Returns false if the command that started this broker has ended.

    That command would have recorded the process: without it the broker must not run.
    """
    endpoints = broker.endpoints
    logger.info("Ready: serving clients on %s", ", ".join(_place(each, endpoints) for each in endpoints))
    if ready_fd is None:
        return True
    try:
        metrics = "" if broker.metrics_endpoint is None else f" {broker.metrics_endpoint}/metrics"
        os.write(ready_fd, f"{endpoints[0].host}:{endpoints[0].port}{metrics}\n".encode())
    except BrokenPipeError:
        logger.error("The command that started this broker ended before it was ready: stopping")
        return False
    finally:
        os.close(ready_fd)
    return True


def _place(endpoint: Endpoint, all_of_them: Sequence[Endpoint]) -> str:
    return str(endpoint) if len(all_of_them) > 1 else f"{endpoint.host}:{endpoint.port}"
