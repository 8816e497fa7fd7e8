"""Storage of banks: one set of tables and queries for SQLite and PostgreSQL, and overlays for forks."""
