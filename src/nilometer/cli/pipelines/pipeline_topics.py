"""Parses ``--topic``: the topics that replace a shipped pipeline's default input topics."""

from __future__ import annotations

import click

from nilometer.pipeline.run.catalogue import Shipped


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
