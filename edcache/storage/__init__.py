"""Crash-safe files, other sources of bytes, locks, and the registry of backends."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
