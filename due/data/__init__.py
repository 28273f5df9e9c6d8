"""Data sets: each loader returns a NamedTuple of arrays."""
