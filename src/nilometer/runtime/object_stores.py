"""Opening the object store at a URI."""

from __future__ import annotations

from nilometer.runtime.object_store import FileObjectStore, ObjectStore, folder_of
from nilometer.runtime.system_disk import SystemDisk


def open_object_store(uri: str, writer: str) -> ObjectStore:
    """Open the store at ``uri``, in a process of which ``writer`` is the unique name.

    Its files have threads of their own: a store that hangs must not hold up the logs. Raises ValueError.
    """
    folder = folder_of(uri)
    if folder is not None:
        return FileObjectStore(SystemDisk(), folder, writer)
    if not uri.startswith("s3://"):
        raise ValueError("the URI of a store begins with file:/// or s3://")
    try:
        from nilometer.runtime.object_store_s3 import S3ObjectStore  # an extra: few brokers use it
    except ModuleNotFoundError as error:
        raise ValueError("a store at s3:// needs an extra: pip install 'nilometer[s3]'") from error
    return S3ObjectStore(uri)
