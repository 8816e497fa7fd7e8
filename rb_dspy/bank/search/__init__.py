"""Ranking rows by meaning and by words."""
