"""A position encoding: a table, a function or a module."""
