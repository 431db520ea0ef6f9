"""Archives as a later release may write them."""

from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields
from unittest.mock import patch

from edcache.format import Header, entries, head, root


@contextmanager
def of_version(version):
    """Write archives of another version of the format in the block, each number of which is right."""
    with ExitStack() as stack:
        for module in (entries, head, root):
            stack.enter_context(patch.object(module, "VERSION", version))
        with_default = [field.name for field in fields(Header) if field.default is not MISSING]
        defaults = dict(zip(with_default, Header.__init__.__defaults__, strict=True)) | {"version": version}
        stack.enter_context(patch.object(Header.__init__, "__defaults__", tuple(defaults.values())))
        yield
