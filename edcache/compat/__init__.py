"""The names of systems that edcache replaces, over edcache's archives: an old script changes one import.

    edflow       CachedDataset, PathCachedDataset, ExamplesFolder, cachable
    torch_xla    CachedDataset
    monai        CacheDataset, PersistentDataset; it imports MONAI
    migrate      where the archive of an old path lies, and what becomes of an old cache at that path

docs/migrating.md has old code beside new code, and what is different.
"""
