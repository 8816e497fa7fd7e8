"""ReasoningBank as an optimizable DSPy program."""
