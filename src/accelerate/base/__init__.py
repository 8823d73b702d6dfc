"""The ground floor: facts and small tools that every other room stands on.

Nothing here imports torch or another room, so the command line starts in milliseconds.
"""
