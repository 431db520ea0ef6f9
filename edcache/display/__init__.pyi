from .notebook import SampleGrid as SampleGrid
from .notebook import Schema as Schema
from .notebook import dataset_html as dataset_html
from .notebook import schema_of as schema_of
from .summary import summary as summary
from .tree import sample_tree as sample_tree
