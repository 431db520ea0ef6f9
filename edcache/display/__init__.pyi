from .summary import summary as summary
from .tree import sample_tree as sample_tree
