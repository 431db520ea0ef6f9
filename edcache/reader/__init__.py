"""Open archive: records by index, one or many at once, and as collated batches.

Torch is imported to make a tensor or a collated batch, for nothing else.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
