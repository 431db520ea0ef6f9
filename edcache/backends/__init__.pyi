from .file import FileStore as FileStore
from .objects import ObjectStore as ObjectStore
