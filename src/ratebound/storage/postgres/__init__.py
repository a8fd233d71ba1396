"""PostgreSQL as a storage."""
