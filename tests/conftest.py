"""What every test file shares."""


def pytest_make_parametrize_id(config, val, argname):
    """Ids without addresses: processes that share the suite must agree on its tests' names."""
    return type(val).__name__ if " at 0x" in repr(val) else None
