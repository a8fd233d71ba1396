"""SQLite as a storage: one file, many processes of one host, no server."""
