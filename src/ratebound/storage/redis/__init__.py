"""Redis as a storage: the same decisions for every process and every machine, in one round trip.

`storage.py` is the storage, `script.py` its one script, `lua/` the mirrored kernels, `hash_slots.py` the rounds that a
Cluster needs, `address.py` URLs, `connect.py` the only file that imports redis-py, `keys.py` the names of states.
"""
