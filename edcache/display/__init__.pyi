from .server import Viewer as Viewer
from .server import view as view
from .shown import Shown as Shown
from .summary import summary as summary
from .tree import sample_tree as sample_tree
