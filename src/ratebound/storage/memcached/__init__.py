"""Memcached as a storage, for rates and calendar quotas: `memcached://host:11211,host2:11211`.

`storage.py` is the storage, `key_lines.py` lets one caller at a time change an item, `item.py` is what an item holds,
`connect.py` talks to the servers, and `address.py` reads URLs.

What Memcached cannot promise: it drops items when its memory is full, and all of them when it restarts. The counts of
those keys start from zero. Its answers have no clock, so instants are those of the host that decides: hosts must keep
their clocks together. Shared documents, such as operators' blocks, are not kept there.
"""
