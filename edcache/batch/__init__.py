"""The bulk path: many records become a collated batch by one gather a field.

    ragged      `collate`, for fields that vary in shape: padded, jagged, or lists of views
    lazy        `Batch`, which stands for samples that are collated in bulk, and who gets one
    bulk        a batch of one archive's samples
    merging     batches of several archives as one
    projection  some fields only, from the labels where they hold them
    collation   a schema compiled into what `default_collate` makes of its samples
    handover    how a worker hands a batch to its parent
    memory      where the bytes of a batch go: memory used before, or what a worker hands over
    paths       field paths in samples

Each imports only those below it.
"""

from edcache.batch.lazy import Batch, batch_for
from edcache.batch.projection import Projection
from edcache.batch.ragged import Jagged, Padded, collate

__all__ = ["Batch", "Jagged", "Padded", "Projection", "batch_for", "collate"]
