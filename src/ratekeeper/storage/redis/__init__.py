"""Redis: the same decisions for every process and every machine, in one round trip."""
