"""The axes along which the ranks that are given one batch divide the work; `base` has the interface."""
