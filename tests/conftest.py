"""Puts this folder on the path (pytest does, for a conftest): `support` is shared by several test folders."""
