"""What a user holds: CachedDataset, views, samplers, loaders and `@cachable`.

apportioning     Whole numbers of things, shared out as evenly as whole numbers allow
archives         Which archives are meant: by a list, a glob or a folder
balanced         Every class equally often
building         How a cache is made of its source, where it is not there yet
by_length        Batches of samples that are alike in length, so that little of them is padding
cached           CachedDataset: a map-style torch dataset over an archive
chunk_shuffle    An order that reads the archive chunk by chunk, for storage on which random reads ...
combining        Several datasets as one: their samples one after the other, or the fields of each ...
decorator        @cachable: fingerprint a call of a dataset factory, fill its archive if needed, open it
loader           Batches made by threads of this process, without a DataLoader's workers
reading          Reading samples: what a cache, several caches together, and every view of them share
relabel          Label columns added to an archive after its samples were written, and dropped again
resampling       More of the rare classes, or fewer of the frequent ones; the first of each
roots            What is indexed underneath all views: one archive, or several put together
sampler_columns  A column of labels, or an array, as what a sampler can use
sampler_epochs   What all samplers share: an order that seed and epoch determine, ranks, and a place ...
samples          Choosing samples: every method makes a view, by index arithmetic alone
several          The archives that were opened by one call, as one dataset
splitting        Parts of a dataset that share no sample: by chance, with classes in proportion, ...
staleness        Whether an archive is of what is asked for: compared, raised and warned of here alone
stored           Reading the samples of one cache: what views and batches are made of
transforms       Functions that samples pass on their way out, one after the other
weighted         Each sample as often as its weight says
wording          How the repr of a view tells what was chosen: short, whatever was given
xla              What XLA devices ask for that others do not; all of torch_xla that the package knows
"""

from edcache.dataset.archives import Path, several
from edcache.dataset.cached import CachedDataset
from edcache.dataset.combining import concat, zip_fields
from edcache.dataset.decorator import CachedFactory, cachable, default_directory
from edcache.dataset.samples import Samples, View
from edcache.dataset.staleness import label_differences

__all__ = [
    "CachedDataset",
    "CachedFactory",
    "Path",
    "Samples",
    "View",
    "cachable",
    "concat",
    "default_directory",
    "label_differences",
    "several",
    "zip_fields",
]
