from .file_store import FileStore as FileStore
from .file_store import copy_bytes as copy_bytes
from .redis import RedisDataset as RedisDataset
from .url import Url as Url
