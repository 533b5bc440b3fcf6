"""Parses what chooses a pipeline and changes it: NAME or a file, ``--formats``, ``--set``, ``--settings``,
``--topic``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click

from nilometer.cli.cluster_options import parse_pairs
from nilometer.cli.pipelines.pipeline_formats_commands import formats_option, read_formats
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run.catalogue import (
    SHIPPED,
    PipelineModule,
    Shipped,
    given_settings,
    load_own,
    make_settings,
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pipeline with its module, its settings and its formats."""

    shipped: Shipped
    module: PipelineModule
    formats: Formats | None = None
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings that were given, before their conversion."""
    settings: Any = None


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that ``choose`` takes."""
    for option in (
        click.option(
            "--set",
            "pairs",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of the pipeline, such as pause=45m; repeatable.",
        ),
        click.option(
            "--settings",
            "settings_files",
            multiple=True,
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A TOML file with settings, in a table per pipeline; repeatable.",
        ),
        formats_option,
    ):
        command = option(command)
    return command


def topics_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--topic``, whose values ``named_topics`` takes, and ``--to``."""
    default = "[default: the name in `pipeline list`]"
    command = click.option("--to", "to_topic", metavar="TOPIC", help=f"The topic to write to. {default}")(
        command
    )
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="TOPIC|INPUT=TOPIC",
        help=f"The topic to read. {default}",
    )(command)


def find(name: str) -> tuple[Shipped, PipelineModule]:
    """Return a shipped pipeline, or that of a file. Raises UsageError, PipelineError."""
    if name in SHIPPED:
        return SHIPPED[name], SHIPPED[name].load()
    if not name.endswith(".py"):
        raise click.UsageError(
            f"{name!r} is no pipeline: there are {', '.join(repr(one) for one in SHIPPED)}, "
            "and files such as ./mine.py"
        )
    shipped, module = load_own(Path(name))
    return shipped, cast(PipelineModule, module)


def choose(
    name: str, format_files: Sequence[Path], pairs: Sequence[str], settings_files: Sequence[Path]
) -> Chosen:
    """Return the pipeline with its settings and formats. Raises ClickException if one is wrong."""
    try:
        shipped, module = find(name)
        formats = Formats(tuple(read_formats(format_files))) if format_files else None
        if formats is not None:
            formats.definitions()
        texts = [(str(path), path.read_text(encoding="utf-8")) for path in settings_files]
        given = given_settings(shipped.name, texts, parse_pairs(tuple(pairs), "--set"))
        settings = settings_of(module, given)
        check = getattr(settings, "check", None)
        if check is not None:
            check()
        return Chosen(shipped, module, formats, given, settings)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None


def settings_of(module: PipelineModule, given: dict[str, Any]) -> Any:
    """Return the module's settings with the given values; None if it has none. Raises SettingError."""
    settings_type = getattr(module, "Settings", None)
    if settings_type is None:
        if given:
            raise PipelineError(f"this pipeline has no settings, and no {', '.join(given)}")
        return None
    return make_settings(settings_type, given)


# Parses ``--topic``: the topics that replace a shipped pipeline's default input topics.


def named_topics(shipped: Shipped, given: tuple[str, ...]) -> dict[str, str]:
    """Return the topics to read, by the pipeline's names for them and in its order. Raises UsageError."""
    chosen = dict(zip(shipped.inputs, shipped.inputs, strict=True))
    seen: set[str] = set()
    for item in given:
        name, separator, topic = item.rpartition("=")
        if separator and name not in chosen:
            raise click.UsageError(f"--topic: {shipped.name} reads {', '.join(chosen)}, and no {name}")
        if "," in topic:
            raise click.UsageError(
                f"--topic {item}: an input is one topic; give another run to the other one with --name NAME"
            )
        if not separator and len(chosen) > 1:
            raise click.UsageError(
                f"--topic: {shipped.name} reads several topics; give INPUT=TOPIC, not {item!r}"
            )
        if (name := name or shipped.inputs[0]) in seen:
            raise click.UsageError(f"--topic is given twice for {name}, which is read from one topic")
        seen.add(name)
        chosen[name] = topic
    return chosen
