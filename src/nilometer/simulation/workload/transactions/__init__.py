"""Programs that write in transactions, and commit, abort, crash, restart and continue as zombies."""
