"""``--registry`` and ``--registry-config``: the registry with the schemas by which records are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nilometer.config import ConfigError, parse_properties

if TYPE_CHECKING:
    from nilometer.schema_registry.client import SchemaRegistry

F = TypeVar("F", bound=Callable[..., Any])
_SETTINGS = "nilometer.registry"
"""Where the context of a command keeps the settings of ``--registry-config``."""
TIMEOUT_S = 3.0


def _read_settings(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    try:
        context.meta[_SETTINGS] = parse_properties(value.read_text(encoding="utf-8"), str(value))
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {value}: {error}") from None
    except ConfigError as error:
        raise click.BadParameter(f"{value}: {error}") from None


def _registry(
    context: click.Context, _parameter: click.Parameter, value: str | None
) -> SchemaRegistry | None:
    settings = context.meta.get(_SETTINGS)
    if value is None:
        if settings is not None:
            raise click.UsageError("--registry-config: give the registry, too: --registry URL")
        return None
    from nilometer.schema_registry.client import RegistryError, SchemaRegistry  # takes long to import

    try:
        return SchemaRegistry(value, settings, timeout_s=TIMEOUT_S)
    except RegistryError as error:
        raise click.BadParameter(error.message) from None


def registry_options(command: F) -> F:
    """Add --registry, which the command gets as a SchemaRegistry, and --registry-config."""
    url = click.option(
        "--registry",
        metavar="URL",
        callback=_registry,
        help="Show Avro, JSON Schema and Protobuf as JSON, by the schemas of this registry.",
    )
    settings = click.option(
        "--registry-config",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        expose_value=False,
        is_eager=True,
        callback=_read_settings,
        help="A properties file with the settings of the registry's client: basic.auth.user.info, "
        "bearer.auth.token, ssl.*.",
    )
    return url(settings(command))
