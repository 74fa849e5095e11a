"""Helpers of the course, one idea per module. Open any of them: they are written to be read."""
