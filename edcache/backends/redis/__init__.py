"""Caches in a Redis server, which several hosts share, and which may lose any of it."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
