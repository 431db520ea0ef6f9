"""Bytes that survive: files and what is like one, durably; locks; which backend has a path or a URL."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
