"""Helpers for people's own tests, and the scripts behind `accelerate test`."""
