"""Writes the lines of files to a topic, each line once, despite log rotation and crashes.

A *source* is one ingested file, recognised under any name; a *look* is one listing of the folders.

- ``line_splitter``: splits bytes into lines (pure: no I/O).
- ``source``: a source's position and fingerprint, by which it is recognised (pure).
- ``found_files``: the types of a look, with the names of rotated files, and of the file system (pure);
  ``matching``: decides which files of a look are known sources, which are copies and which are new (pure).
- ``source_run``: one source while it is read, plain or gzip; ``tracker``: all sources, compared by content.
  These use only the file system that they are given.
- ``source_files``: the operating system's files.
- ``state_file``: which lines are in the topic already, by the saved state and by reading the topic;
  ``ledger``: which lines are acknowledged.
- ``line_sender``: makes records of lines and sends them.
- ``ingest``: combines these and does the I/O. One task looks at the files all the time; another one reads
  and sends, and may wait for the broker.
"""
