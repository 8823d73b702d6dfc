"""Measures this library beside accelerate 1.15.0 and plain torch. `make bench` runs everything here."""
