"""Objects in S3, or a store that speaks its protocol and honours ``If-None-Match: *`` for conditional writes.

The URI is that of an archive: ``s3://BUCKET/PATH``, or ``s3://KEY:SECRET@BUCKET/PATH``, with ``region``,
``endpoint_override`` and ``scheme`` as options. Without a key in the URI, that of the environment is used
(``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``), or what the machine's role gives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from nilometer.runtime.object_store import Listed, ObjectNotFound, ObjectStoreError

if TYPE_CHECKING:
    from obstore.store import S3Config

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30
RETRIES_MAX = 3
_UPLOADED_PART_BYTES = 8 << 20
"""S3 takes at most 10,000 parts of an object, each of 5 MiB at least."""
_PARTS_AT_ONCE = 2
_OPTIONS = ("region", "endpoint_override", "scheme")
_NO_BUCKET = "NoSuchBucket"
_UNUSABLE = (PermissionDeniedError, UnauthenticatedError, InvalidPathError)


class S3ObjectStore:
    def __init__(self, uri: str) -> None:
        """Raises ValueError for a URI that cannot be used. No request is made."""
        parts = urlsplit(uri)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        unknown = sorted(set(options) - set(_OPTIONS))
        if parts.scheme != "s3" or not parts.hostname or unknown:
            what = f"has the unknown option {unknown[0]}" if unknown else "is not s3://BUCKET/PATH"
            raise ValueError(f"the URI of the store {what}")
        bucket = parts.netloc.rpartition("@")[2]
        path = parts.path.strip("/")
        self._prefix = f"{path}/" if path else ""
        self._shown = f"s3://{bucket}/{self._prefix}"
        scheme = options.get("scheme", "https")
        config: S3Config = {}
        if "region" in options:
            config["region"] = options["region"]
        if "endpoint_override" in options:
            config["endpoint"] = f"{scheme}://{options['endpoint_override']}"
        if parts.username is not None:
            config["access_key_id"] = unquote(parts.username)
            config["secret_access_key"] = unquote(parts.password or "")
        self._store = S3Store(
            bucket,
            config=config,
            client_options={"allow_http": scheme == "http", "timeout": timedelta(seconds=REQUEST_TIMEOUT_S)},
            retry_config={
                "max_retries": RETRIES_MAX,
                "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            },
        )

    async def create(self, name: str, data: bytes) -> bool:
        try:
            await self._call(name, obstore.put_async(self._store, self._prefix + name, data, mode="create"))
        except _Exists:
            return await self.get(name) == data  # a repeated request finds what the first one wrote
        return True

    async def put(self, name: str, data: bytes) -> None:
        await self._call(name, obstore.put_async(self._store, self._prefix + name, data, use_multipart=False))

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        writing = obstore.put_async(
            self._store,
            self._prefix + name,
            parts,
            use_multipart=True,
            chunk_size=_UPLOADED_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )
        await self._call(name, writing)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._prefix + name
        if length is not None:
            reading = obstore.get_range_async(self._store, path, start=start, length=length)
            return bytes(await self._call(name, reading))
        found = await self._call(name, obstore.get_async(self._store, path))
        data = bytes(await self._call(name, found.bytes_async()))
        return data[start:]

    async def remove(self, name: str) -> None:
        try:
            await self._call(name, obstore.delete_async(self._store, self._prefix + name))
        except ObjectNotFound:
            return

    async def names(self, prefix: str) -> list[str]:
        return sorted(await self.listed(prefix))

    async def listed(self, prefix: str) -> dict[str, Listed]:
        folder, _, _ = (self._prefix + prefix).rpartition("/")

        async def listing() -> dict[str, Listed]:
            listed = obstore.list(self._store, prefix=folder or None)
            found = [(one["path"].removeprefix(self._prefix), one) async for some in listed for one in some]
            return {
                name: Listed(one["size"], int(one["last_modified"].timestamp() * 1000))
                for name, one in found
                if name.startswith(prefix)
            }

        return await self._call(prefix, listing())

    async def folders(self, folder: str) -> list[str]:
        listing = obstore.list_with_delimiter_async(self._store, prefix=self._prefix + folder)
        found = await self._call(folder, listing)
        return sorted(f"{one.removeprefix(self._prefix)}/" for one in found["common_prefixes"])

    async def _call(self, name: str, request: Awaitable[T]) -> T:
        try:
            return await request
        except AlreadyExistsError as error:
            raise _Exists(name) from error
        except (BaseError, OSError) as error:
            if _NO_BUCKET in str(error):  # also of a read: it must not be taken for an empty store
                raise ObjectStoreError(f"{self._shown}{name}: there is no such bucket") from error
            if isinstance(error, FileNotFoundError):
                raise ObjectNotFound(name) from error
            reason = str(error).partition("\n")[0]
            raise ObjectStoreError(
                f"{self._shown}{name}: {reason}", is_passing=not isinstance(error, _UNUSABLE)
            ) from error


class _Exists(ObjectStoreError):
    """The object exists already."""
