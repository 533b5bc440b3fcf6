"""The messages of errors that reach the command line: what was wrong, where, and what to do.

Nothing heavy is imported before there is an error.
"""

from __future__ import annotations

EXTRAS = {
    "spark": (
        "pyspark",
        "pyarrow",
        "pandas",
        "numpy",
        "numba",
        "google",
        "matplotlib",
        "grpc",
        "grpc_status",
        "yaml",
    ),
    "postgres": ("psycopg",),
    "secure": ("cryptography",),
    "console": ("starlette", "uvicorn", "jinja2"),
}
"""The extras of the package, and the modules that come with each: the base package does not need them."""

_ADVICE = {
    "NETWORK_EXCEPTION": "`nilometer up` starts a broker; --bootstrap-server is for one that runs elsewhere.",
    "UNKNOWN_TOPIC_OR_PARTITION": "`nilometer topic list` shows the topics.",
    "UNKNOWN_TOPIC_ID": "`nilometer topic list` shows the topics.",
    "INVALID_TOPIC_EXCEPTION": "A topic's name has 1 to 249 letters, digits, dots, underscores and hyphens.",
    "MESSAGE_TOO_LARGE": "The topic's max.message.bytes and the producer's max.request.size limit a record.",
    "GROUP_ID_NOT_FOUND": "`nilometer group list` shows the groups.",
    "NOT_ENOUGH_REPLICAS": "Fewer replicas are in sync than min.insync.replicas: start stopped brokers.",
}


def explain(error: Exception) -> str | None:
    """Return the message of an error that the user or the environment caused; None for a bug."""
    from nilometer.config import ConfigError
    from nilometer.runtime import LockHeld
    from nilometer.wire.errors import KafkaError

    if isinstance(error, KafkaError):
        advice = _ADVICE.get(error.name)
        return str(error) + (f"\n{advice}" if advice else "")
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error.name)
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} is not UTF-8 text"
    if isinstance(error, (LockHeld, ConfigError)):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


def is_wrong_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong, rather than what it met."""
    from nilometer.config import ConfigError

    return isinstance(error, (ConfigError, UnicodeEncodeError))


def missing_extra(module: str | None) -> str | None:
    """Return how to install the extra that ``module`` belongs to; None if it belongs to none."""
    top = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f"this command needs {top}, which is not installed: pip install 'nilometer[{extra}]'"
    return None
