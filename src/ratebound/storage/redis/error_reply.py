"""What a server's refusal means, by how it begins, and what to do about it."""

MEANINGS = {
    "OOM": "Redis is out of memory: raise maxmemory, or keep limits on an instance of their own",
    "READONLY": "this is a replica: writes go to a master, see redis+sentinel:// or redis+cluster://",
    "BUSY": "a script on the server runs for too long; `SCRIPT KILL` ends it, if it has not written yet",
    "LOADING": "Redis is loading its data; it will answer soon",
    "NOAUTH": "Redis wants a password: redis://user:password@host",
    "WRONGPASS": "Redis does not know this user and password",
    "NOPERM": "this user may not do this: it needs EVALSHA, EVAL, TIME, GET, SET, DEL, PEXPIRE, LINDEX, LRANGE, LSET,"
    " LLEN, LREM, LTRIM, LPUSH and RPUSH on its keys, and WAIT with ?replicas=",
    "CLUSTERDOWN": "the Cluster does not serve these slots now",
    "MASTERDOWN": "the master of this replica is down",
    "TRYAGAIN": "slots are being moved; the next try may pass",
    "TTL exhausted": "slots are being moved; the next try may pass",  # how redis-py says TRYAGAIN, after some of them
    "CROSSSLOT": "this is a Cluster: use redis+cluster://",
    "MOVED": "this is a Cluster: use redis+cluster://",
    "ASK": "this is a Cluster: use redis+cluster://",
    "MISCONF": "Redis cannot save its data and refuses to write; see its log, and stop-writes-on-bgsave-error",
    "NOREPLICAS": "too few replicas to accept a write, see min-replicas-to-write",
    "Authentication required": "Redis wants a password: redis://user:password@host",
}


FOREIGN = (
    "a key of ours holds what we did not write: give Ratebound a prefix of its own with ?prefix=…, or delete that key"
)


def meaning_of(text: str) -> str | None:
    if is_foreign(text):
        return f"{FOREIGN} ({text})"
    if "can't run this command" in text:
        return f"{MEANINGS['NOPERM']} ({text})"
    for begin, meaning in MEANINGS.items():
        if text.startswith(begin) or f" {begin} " in text[:80]:
            return f"{meaning} ({text})"
    return None


def is_foreign(text: str) -> bool:
    """Whether the server is well, and just one key is not ours: the script says FOREIGN, or Redis itself objects."""
    return "FOREIGN" in text or "WRONGTYPE" in text or "wrong kind of value" in text
