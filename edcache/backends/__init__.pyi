from .file_store import FileStore as FileStore
from .file_store import copy_bytes as copy_bytes
from .proof import LEAST_TRIES as LEAST_TRIES
from .proof import NewCopy as NewCopy
from .proof import prove as prove
from .redis import RedisDataset as RedisDataset
from .url import Url as Url
