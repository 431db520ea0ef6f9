"""Base of all rooms: the exception tree, options as objects, progress, small helpers."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
