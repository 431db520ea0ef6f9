"""An open archive: its records by index, one or many at once, and as collated batches.

`Reader` and all that it says of an archive load no torch; the first sample that is read does.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
