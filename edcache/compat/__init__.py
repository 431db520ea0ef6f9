"""Names of systems that edcache replaces, over edcache's archives: an old script changes one import.

    edflow       CachedDataset, PathCachedDataset, cachable
    torch_xla    CachedDataset
    kappadata    RedisDataset

docs/migrating.md has old code beside new code, and the differences.
"""
