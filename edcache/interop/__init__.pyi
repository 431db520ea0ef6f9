from .folders import image_folder as image_folder
from .importer import import_cache as import_cache
from .kinds import Kind as Kind
