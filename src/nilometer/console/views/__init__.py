"""What the pages show, as plain values. Pure: no clock, no I/O."""
