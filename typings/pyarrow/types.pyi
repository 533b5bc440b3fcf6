"""The tests of Arrow's data types that this project uses."""

from pyarrow import DataType

def is_binary(t: DataType) -> bool: ...
