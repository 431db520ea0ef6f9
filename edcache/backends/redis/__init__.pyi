from .removing import removable as removable
from .removing import remove as remove
from .url import is_server as is_server
