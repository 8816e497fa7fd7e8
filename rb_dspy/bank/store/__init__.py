"""Where banks are stored: one set of tables and queries for SQLite and PostgreSQL, and overlays for forks."""
