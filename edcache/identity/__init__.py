"""Identity: whose samples an archive has; samples that are computed again, and compared with their records."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
