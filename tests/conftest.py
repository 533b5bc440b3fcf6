"""Puts this folder on the path (pytest does, for a conftest): `support` is shared by several test folders."""

import signal

# A shell starts what it runs in the background with SIGINT ignored, and every child would inherit that: tests
# that interrupt a command would wait for something that cannot come.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
