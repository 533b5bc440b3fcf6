"""Checkers of simulation runs. They read histories, the bytes on virtual disks, and each broker's state, and
compare them. They do not use the code that they check."""
