from .compat_edflow import open_or_fill as open_or_fill
from .export import export as export
from .folders import EXTENSIONS as EXTENSIONS
from .folders import image_folder as image_folder
from .importer import import_cache as import_cache
from .importer import old_cache as old_cache
