"""Rank rows by meaning and by words."""
