from .housekeeping import Listed as Listed
from .housekeeping import archives_in as archives_in
from .housekeeping import delete_unused as delete_unused
from .housekeeping import select as select
from .verify import Report as Report
from .verify import digest as digest
from .verify import verify as verify
