"""Memcached as a storage, for rates and calendar quotas."""
