"""Lines of files into a topic: each line once, whatever rotates or crashes.

- ``line_splitter``: bytes into lines (pure).
- ``source``: what is known of one file, and how it is known again under another name (pure).
- ``rotation_names``, ``matching``: which of the files that a look found are being read, which are copies,
  which are new (pure); ``missing_sources``: when a file that is gone is forgotten (pure).
- ``found_files``: a look, and the file system as the following see it; ``content_reader``, ``contents``:
  what files hold, plain or gzip; ``source_run``: one file while it is read; ``tracker``: all of them. These
  know no other file system than the one they are given.
- ``source_files``, ``birth_time``: the operating system's files.
- ``state_file``: that knowledge, kept between runs; ``ledger``: what of it is acknowledged.
- ``read_back``: which lines are in the topic already, asked of the topic itself.
- ``ingest``: the shell that puts these together. One task looks at the files all the time; another one reads
  and sends, and may wait for the broker as long as it likes.
"""
