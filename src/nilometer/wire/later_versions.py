"""Messages of Apache Kafka 4.4 that kio does not have: it has those of 4.3.

They become modules beside kio's, with the same names and kinds of classes, so that no other module has to
tell them apart. A version that differs little from the one before it is given by what is added and removed.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

_REQUIRED: Final = dataclasses.MISSING
_PYTHON_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "int8": i8,
    "int32": i32,
    "int64": i64,
    "string": str,
    "uuid": uuid.UUID,
    "error_code": ErrorCode,
    "timedelta_i32": i32Timedelta,
}


class _Field(NamedTuple):
    name: str
    kind: str
    """A type of Kafka, or the name of a structure that was defined before; an array of them in brackets."""
    default: Any = _REQUIRED
    nullable: bool = False
    after: str | None = None
    """The field that it follows; None: it is the last one; empty: the first one."""


class _Change(NamedTuple):
    add: tuple[_Field, ...] = ()
    remove: frozenset[str] = frozenset()


class _Later(NamedTuple):
    """A version that differs from the one before it."""

    name: str
    version: int
    request: Mapping[str, _Change] = {}
    response: Mapping[str, _Change] = {}
    """What changes of the classes, by name; and structures that are new."""


class _New(NamedTuple):
    api_key: int
    request: Mapping[str, _Change]
    response: Mapping[str, _Change]
    """All classes of version 0; the message itself is the last one."""


_TOPOLOGY_DESCRIPTION: Mapping[str, _Change] = {
    "TopologyDescriptionNode": _Change(
        (
            _Field("name", "string"),
            _Field("node_type", "int8"),
            _Field("source_topics", "[string]"),
            _Field("sink_topic", "string", None, nullable=True),
            _Field("stores", "[string]"),
            _Field("successors", "[string]"),
        )
    ),
    "TopologyDescriptionGlobalStore": _Change(
        (_Field("source", "TopologyDescriptionNode"), _Field("processor", "TopologyDescriptionNode"))
    ),
    "TopologyDescriptionSubtopology": _Change(
        (_Field("subtopology_id", "string"), _Field("nodes", "[TopologyDescriptionNode]"))
    ),
    "TopologyDescription": _Change(
        (
            _Field("subtopologies", "[TopologyDescriptionSubtopology]"),
            _Field("global_stores", "[TopologyDescriptionGlobalStore]"),
        )
    ),
}
_BY_ID = _Change((_Field("topic_id", "uuid", nullable=True, after=""),), frozenset({"name"}))
_LATER = (
    _Later(  # KIP-1331, KIP-1357
        "streams_group_heartbeat",
        1,
        response={
            "StreamsGroupHeartbeatResponse": _Change(
                (
                    _Field("acceptable_recovery_lag", "int64", i64(-1), after="task_offset_interval"),
                    _Field("topology_description_required", "bool", False, after="warmup_tasks"),
                ),
                frozenset({"acceptable_recovery_lag"}),
            )
        },
    ),
    _Later(
        "streams_group_describe",
        1,
        {"StreamsGroupDescribeRequest": _Change((_Field("include_topology_description", "bool", False),))},
        {
            **_TOPOLOGY_DESCRIPTION,
            "DescribedGroup": _Change(
                (
                    _Field("topology_description", "TopologyDescription", None, nullable=True),
                    _Field("topology_description_status", "int8", i8(0)),
                    _Field("assignor_name", "string", None, nullable=True),
                )
            ),
        },
    ),
    _Later(
        "delete_groups",
        3,
        response={"DeletableGroupResult": _Change((_Field("error_message", "string", None, nullable=True),))},
    ),
    _Later(  # KIP-1319
        "txn_offset_commit",
        6,
        {"TxnOffsetCommitRequestTopic": _BY_ID},
        {"TxnOffsetCommitResponseTopic": _BY_ID},
    ),
    _Later(  # KIP-1242
        "api_versions",
        5,
        {
            "ApiVersionsRequest": _Change(
                (_Field("cluster_id", "string", None, nullable=True), _Field("node_id", "int32", i32(-1)))
            )
        },
    ),
)
_NEW: Mapping[str, _New] = {
    "streams_group_topology_description_update": _New(
        93,
        {
            **_TOPOLOGY_DESCRIPTION,
            "StreamsGroupTopologyDescriptionUpdateRequest": _Change(
                (
                    _Field("group_id", "string"),
                    _Field("member_id", "string"),
                    _Field("topology_epoch", "int32"),
                    _Field("topology_description", "TopologyDescription"),
                )
            ),
        },
        {
            "StreamsGroupTopologyDescriptionUpdateResponse": _Change(
                (
                    _Field("throttle_time", "timedelta_i32"),
                    _Field("error_code", "error_code"),
                    _Field("error_message", "string", None, nullable=True),
                )
            )
        },
    )
}
"""APIs that kio lacks, by name."""


def _define(
    path: str,
    before: ModuleType | None,
    changes: Mapping[str, _Change],
    api_key: int,
    is_flexible: bool,
) -> ModuleType:
    """Return a module with the classes of ``before``, changed, and with new ones."""
    module = ModuleType(path)
    common = {
        "__version__": i16(int(path.rsplit(".v", 1)[1].split(".")[0])),
        "__flexible__": is_flexible,
        "__api_key__": i16(api_key),
    }
    made: dict[str, type[Any]] = {}
    found: dict[str, Any] = {} if before is None else nested_types(vars(before))
    for name in [*(name for name in changes if name not in found), *found]:
        base, change = found.get(name), changes.get(name, _Change())
        is_same = base is not None and change == _Change() and not _refers_to(base, made)
        if base is not None and is_same and base.__type__ is EntityType.nested:
            made[name] = base
            continue
        fields = [] if base is None else list(_fields_of(base, change.remove, made))
        for field in change.add:
            entry = field.name, *_made(field, made)
            at = len(fields)
            if field.after == "":
                at = 0
            elif field.after is not None:
                at = next(index for index, (each, _, _) in enumerate(fields, 1) if each == field.after)
            fields.insert(at, entry)
        header = RequestHeader if path.endswith(".request") else ResponseHeader
        namespace = {**common, "__type__": _kind_of(name, base), "__header_schema__": header}
        if base is not None:
            namespace["__header_schema__"] = base.__header_schema__
        made[name] = dataclasses.make_dataclass(
            name, fields, namespace=namespace, frozen=True, slots=True, kw_only=True
        )
        made[name].__module__ = path
    vars(module).update(made)
    return module


def _refers_to(base: Any, made: Mapping[str, type[Any]]) -> bool:
    """Whether a field has the type of a class that differs in this version."""
    return any(_renewed(field.type, made) != field.type for field in dataclasses.fields(base))


def nested_types(module: Mapping[str, Any]) -> dict[str, type[Any]]:
    """Return the schema classes of one of kio's modules, by name. Some may be those of an earlier version."""
    api = module["__name__"].rsplit(".", 2)[0] + "."
    return {
        key: value
        for key, value in module.items()
        if isinstance(value, type) and value.__module__.startswith(api) and dataclasses.is_dataclass(value)
    }


def _kind_of(name: str, base: Any) -> EntityType:
    if base is not None:
        return base.__type__
    if name.endswith("Request"):
        return EntityType.request
    return EntityType.response if name.endswith("Response") else EntityType.nested


def _fields_of(
    base: type[Any], removed: frozenset[str], made: Mapping[str, type[Any]]
) -> Iterable[tuple[str, Any, Any]]:
    for field in dataclasses.fields(base):
        if field.name not in removed:
            again = dataclasses.field(
                default=field.default, default_factory=field.default_factory, metadata=field.metadata
            )
            yield field.name, _renewed(field.type, made), again


def _renewed(annotation: Any, made: Mapping[str, type[Any]]) -> Any:
    """Return a type with the classes of this version in place of those of the one before it."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return made.get(annotation.__name__, cast("Any", annotation))
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return tuple[_renewed(parts[0], made), ...]
    if origin in (types.UnionType, typing.Union):
        first, *others = [_renewed(part, made) for part in parts]
        union: Any = first
        for other in others:
            union |= other
        return union
    return cast("Any", annotation)


def _made(field: _Field, made: Mapping[str, type[Any]]) -> tuple[Any, Any]:
    """Return the type of a new field, and the field."""
    is_array = field.kind.startswith("[")
    kind = field.kind.strip("[]")
    annotation = made.get(kind) or _PYTHON_TYPES[kind]
    metadata = {} if kind in made else {"kafka_type": kind}
    if is_array:
        annotation = tuple[annotation, ...]
    if field.nullable:
        annotation = annotation | None
    default = () if is_array and not made.get(kind) else field.default
    return annotation, dataclasses.field(default=default, metadata=metadata)


_BY_VERSION = {(later.name, later.version): later for later in _LATER}
LATER_VERSIONS = (*_BY_VERSION, *((name, 0) for name in _NEW))
"""kio's name of each API with the version that kio does not have."""
API_NAMES: Mapping[int, str] = {**api_key_map, **{new.api_key: name for name, new in _NEW.items()}}
"""kio's names of all APIs, by API key."""


def versions_of(name: str) -> Sequence[int]:
    """Return the versions of an API for which there is a schema; none if there is no such API."""
    later = [version for each, version in _BY_VERSION if each == name]
    return [*schema_name_map.get(name, {}), *later, *((0,) if name in _NEW else ())]


def schema_module(name: str, version: int, part: str) -> ModuleType:
    """Return the module with the classes of one version: ``part`` is ``request`` or ``response``.

    Raises ImportError if there is no such version.
    """
    path = f"kio.schema.{name}.v{version}.{part}"
    if path not in sys.modules:
        later, new = _BY_VERSION.get((name, version)), _NEW.get(name)
        if later is not None:
            before = schema_module(name, version - 1, part)
            api = next(each for each in vars(before).values() if hasattr(each, "__api_key__"))
            sys.modules[path] = _define(path, before, getattr(later, part), api.__api_key__, api.__flexible__)
        elif new is not None and version == 0:
            sys.modules[path] = _define(path, None, getattr(new, part), new.api_key, is_flexible=True)
    return importlib.import_module(path)


def message_type(name: str, version: int, part: str) -> Any:
    """Return the class of the requests, or responses, of one version. Raises ImportError."""
    kind = EntityType[part]
    module = schema_module(name, version, part)
    return next(each for each in vars(module).values() if getattr(each, "__type__", None) is kind)
