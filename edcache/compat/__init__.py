"""Names of systems that edcache replaces, over edcache's archives: an old script changes one import.

    edflow       CachedDataset, PathCachedDataset, cachable
    torch_xla    CachedDataset
    monai        CacheDataset, PersistentDataset; it imports MONAI
    kappadata    RedisDataset

docs/migrating.md has old code beside new code, and the differences.
"""
