"""A function that builds a mask."""
