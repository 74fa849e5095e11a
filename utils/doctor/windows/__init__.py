"""A local attention function."""
