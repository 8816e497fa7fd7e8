"""Compiling prompts: labelled examples from runs, metrics with evidence, optimizers by name."""
