from .memory import archives_in_memory as archives_in_memory
