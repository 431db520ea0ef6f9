"""Whole archives: forecast, verified, identified, listed, and which of them may go."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
