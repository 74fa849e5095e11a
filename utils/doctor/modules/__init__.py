"""A module that attends, with weights of its own."""
