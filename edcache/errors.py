"""The exception tree; each of them is edcache.NAME too."""

from edcache.base import errors as _errors
from edcache.base.errors import *  # noqa: F403

__doc__ = _errors.__doc__
