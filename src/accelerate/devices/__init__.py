"""Hardware: one row per kind (`specs`), one interface over it (`device`), and what is odd in a small file of its own.

Nothing is imported here, so that the torch-free table of rows stays cheap to read for the launchers.
"""
