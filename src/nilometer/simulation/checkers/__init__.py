"""Judges of what happened in a world. They share no code with the product: they read histories, the bytes on
virtual disks, and what each broker believes, and compare."""
