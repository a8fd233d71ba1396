"""The meaning of Redis error replies by their first word, and the remedy for each."""

MEANINGS = {
    "OOM": "Redis is out of memory: raise maxmemory, or use a separate instance for limits",
    "READONLY": "this server is a replica: use its master, or redis+sentinel:// or redis+cluster://",
    "BUSY": "a script on the server has run for too long: end it with SCRIPT KILL if it has not written yet",
    "LOADING": "Redis is loading its data: wait until it has finished",
    "NOAUTH": "Redis requires a password: use redis://user:password@host",
    "WRONGPASS": "Redis rejected the user or the password: check both",
    "NOPERM": "the Redis user lacks permissions: it needs EVALSHA, EVAL, TIME, GET, SET, DEL, PEXPIRE, LINDEX, LRANGE,"
    " LSET, LLEN, LREM, LTRIM, LPUSH, RPUSH, ZADD, ZCOUNT, ZRANGEBYSCORE, ZREM, ZREMRANGEBYSCORE, ZREVRANGE and ZSCORE"
    " on its keys, and WAIT with ?replicas=",
    "CLUSTERDOWN": "the Cluster does not serve these hash slots now: see CLUSTER INFO on its nodes",
    "MASTERDOWN": "the master of this replica is down: start it, or let Sentinel promote a replica",
    "TRYAGAIN": "hash slots are being moved: try again",
    "TTL exhausted": "hash slots are being moved: try again",  # redis-py's message after several TRYAGAIN
    "CROSSSLOT": "this is a Cluster: use redis+cluster://",
    "MOVED": "this is a Cluster: use redis+cluster://",
    "ASK": "this is a Cluster: use redis+cluster://",
    "MISCONF": "Redis cannot save its data and rejects writes: see its log, and stop-writes-on-bgsave-error",
    "NOREPLICAS": "too few replicas to accept a write: see min-replicas-to-write",
    "Authentication required": "Redis requires a password: use redis://user:password@host",
}


FOREIGN = (
    "a Ratebound key holds a value that Ratebound did not write: set a separate prefix with ?prefix=…,"
    " or delete the key"
)


def meaning_of(text: str) -> str | None:
    """Return the meaning and remedy of an error reply, or None if it is unknown."""
    if is_foreign(text):
        return f"{FOREIGN} ({text})"
    if "can't run this command" in text:
        return f"{MEANINGS['NOPERM']} ({text})"
    for begin, meaning in MEANINGS.items():
        if text.startswith(begin) or f" {begin} " in text[:80]:
            return f"{meaning} ({text})"
    return None


def is_foreign(text: str) -> bool:
    """Return True if only one key is not ours: the script says FOREIGN, or Redis WRONGTYPE."""
    return "FOREIGN" in text or "WRONGTYPE" in text or "wrong kind of value" in text
