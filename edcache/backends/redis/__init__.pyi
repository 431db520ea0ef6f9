from .samples import RedisDataset as RedisDataset
