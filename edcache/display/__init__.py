"""Display of a dataset: pictures of values, samples as trees, summaries, notebooks, a page."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
