"""An open archive: records by index, one or many at once, and as collated batches.

`Reader` imports torch where a tensor is made, and for collated batches. Nothing else needs it.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
