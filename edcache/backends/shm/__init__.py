"""Archives in shared memory, and copies there of archives that are elsewhere."""
