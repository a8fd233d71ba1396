"""The kinds of locks that this system has for a zone."""

from ratebound.storage.shared_memory.locks import FILE_LOCKS, best_kind

LOCKS = ["file"] if best_kind() == FILE_LOCKS else ["file", "mutex"]
