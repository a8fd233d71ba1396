"""States in memory that all processes of one host share: a zone of a fixed size, and no server.

`layout.py` says what is where in a zone. `locks.py` has its locks, `zone_file.py` makes and opens it, `cells.py` reads
and writes its states, `zone_states.py` decides from them, and `storage.py` is the storage that users open.
"""
