"""The command line: ``rb-dspy``."""
