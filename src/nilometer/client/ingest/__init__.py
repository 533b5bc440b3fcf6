"""Lines of files into a topic: each line once, whatever rotates or crashes.

- ``line_splitter``: bytes into lines (pure).
- ``source``: what is known of one file, and how it is known again under another name (pure).
- ``matching``: which of the files that are there are those that were being read (pure).
- ``state_file``: that knowledge, kept between runs.
- ``source_files``: the operating system's files, plain and compressed.
- ``read_back``: which lines are in the topic already, asked of the topic itself.
- ``ingest``: the shell that puts these together.
"""
