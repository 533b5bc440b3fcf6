"""The flight recorder: all input of a broker in a file, and the broker again from it."""

WINDOW_BYTES = 4 * 1024 * 1024
"""By so much the file of a recording grows."""
