from .credentials import ShownUrl as ShownUrl
from .credentials import scrubbed as scrubbed
from .file import FileStore as FileStore
from .file import copy_bytes as copy_bytes
from .objects import ObjectStore as ObjectStore
