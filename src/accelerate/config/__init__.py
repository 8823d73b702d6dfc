"""Settings: one declaration each, and the doors by which their values come in.

`option` declares; `flags`, `files`, `env` and `questionnaire` are the doors; `resolve` says which door wins. One file
per plugin dataclass holds its settings, and `cluster` what the config file is. Names are imported lazily, so that a
room which reads one of them doesn't pay for the others.
"""
