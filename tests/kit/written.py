"""Archives of given samples."""

from edcache import CachedDataset, CacheWriter


def write(path, samples, mode="x", indices=None, **options):
    """Write samples, at these indices or behind each other, and seal; returns the path."""
    with CacheWriter(path, mode, **options) as writer:
        if indices is None:
            writer.extend(samples)
        else:
            for index, sample in zip(indices, samples, strict=True):
                writer.write(index, sample)
    return path


def written(path, samples, mode="x", indices=None, **options):
    """Write samples as `write` does; returns the opened archive."""
    return CachedDataset.from_cache(write(path, samples, mode, indices, **options))
