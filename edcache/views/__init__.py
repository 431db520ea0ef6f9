"""Between a cache and a DataLoader: selections of samples and of fields, transforms, several caches as one.

    several       the archives that were opened by one call, as one dataset
    combining     concat and zip_fields: several datasets as one
    roots         what is indexed underneath all views
    samples       Samples and View: every way to choose samples
    resampling    more of the rare classes, fewer of the frequent
    splitting     parts that share no sample
    apportioning  whole numbers shared out evenly
    transforms    functions that samples pass on their way out
    wording       the steps of a view as its repr tells them
    reading       what all of them share: reading samples and batches

Imports run downwards in this list only. What a selection of indices is stands in `edcache/selection.py`.
"""

from edcache.views.combining import Concat, Zipped, concat, zip_fields
from edcache.views.reading import T_co, checked_function
from edcache.views.roots import Root
from edcache.views.samples import Samples, View
from edcache.views.several import Several

__all__ = [
    "Concat",
    "Root",
    "Samples",
    "Several",
    "T_co",
    "View",
    "Zipped",
    "checked_function",
    "concat",
    "zip_fields",
]
