"""The store that lives in memory: banks without a file, forks and snapshots of others."""
