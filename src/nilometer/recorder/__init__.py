"""The flight recorder: all input of a broker in a file, and the broker again from it."""
