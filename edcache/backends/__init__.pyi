from .credentials import ShownUrl as ShownUrl
from .credentials import scrubbed as scrubbed
from .file_store import FileStore as FileStore
from .file_store import copy_bytes as copy_bytes
from .objects import ObjectStore as ObjectStore
