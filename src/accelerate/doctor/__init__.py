"""What makes runs fail before they start, found beforehand: the checks behind `accelerate doctor`.

A check is a function from :class:`~accelerate.doctor.finding.Visit` to findings, and a line in `checks`. None of them
imports torch in this process.
"""
