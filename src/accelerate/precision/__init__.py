"""Number formats of training, an axis of its own: full precision is the base class whose hooks do nothing.

`select_precision` chooses one by name; `PrecisionSpec` states the facts which strategies translate into their own
terms.
"""
