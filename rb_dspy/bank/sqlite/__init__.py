"""The store that lives in one SQLite file."""
