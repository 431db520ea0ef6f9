"""Caches in a Redis server, which several hosts share, and which may lose any of it."""
