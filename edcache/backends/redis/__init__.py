"""A Redis server: sealed archives in pieces, and datasets that keep each sample under a key."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
