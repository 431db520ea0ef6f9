"""Files, objects behind a URL, shared memory; samples in Redis. Below, only the registry of `storage` names them."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
