from .copy import copy_local as copy_local
from .copy import copy_to_local as copy_to_local
from .evict import copy_at as copy_at
from .evict import delete as delete
from .evict import is_made as is_made
