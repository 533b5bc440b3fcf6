"""A package: what its conftest starts for all tests of the folder ends with the last of them."""
