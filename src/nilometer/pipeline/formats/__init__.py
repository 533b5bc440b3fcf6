"""Formats of lines: definitions as data, one matcher made of them, counts, and proposals for other lines.

Imports nothing of Spark, so that ``nilometer pipeline formats`` works without it. ``definition`` reads TOML,
``matcher`` is what other code uses, ``tally`` counts, ``proposals`` looks at lines that no format takes.
"""
