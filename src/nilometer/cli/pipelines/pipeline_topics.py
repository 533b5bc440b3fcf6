"""Parses ``--topic``: the topics that replace a shipped pipeline's default input topics."""

from __future__ import annotations

import click

from nilometer.pipeline.run.catalogue import Shipped


def named_topics(shipped: Shipped, given: tuple[str, ...]) -> dict[str, str]:
    """Return the topics to read, by the pipeline's names for them and in its order. Raises UsageError."""
    chosen = dict(zip(shipped.inputs, shipped.inputs, strict=True))
    for item in given:
        name, separator, topic = item.rpartition("=")
        if separator and name not in chosen:
            raise click.UsageError(f"--topic: {shipped.name} reads {', '.join(chosen)}, and no {name}")
        if not separator and len(chosen) > 1:
            raise click.UsageError(
                f"--topic: {shipped.name} reads several topics; give INPUT=TOPIC, not {item!r}"
            )
        chosen[name or shipped.inputs[0]] = topic
    return chosen
