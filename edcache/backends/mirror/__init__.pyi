from .copy import copy_local as copy_local
from .copy import copy_to_local as copy_to_local
