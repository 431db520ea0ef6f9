"""Format: its specification, the chain of entries, tables, the zip directory; pure functions."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
