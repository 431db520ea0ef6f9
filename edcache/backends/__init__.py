"""Where archives can be, beside a path: each is a plug-in, and nothing below names one."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
