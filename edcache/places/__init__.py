"""Where the bytes of an archive are: in a file, or behind a URL. Above the reader nothing knows which it is.

    spool      a local file for an archive that is to be behind a URL
    upload     one file to one object, in parts where the server keeps them
    opening    a path or a URL to an open `Place`
    remote     `RemotePlace`: an object behind a URL: one state of it, many extents by one concurrent fetch
    engines    which library reads a scheme: fsspec, and our own client where the scheme speaks HTTP
    hub        a file of a Hugging Face repository, at one commit
    web        one object over HTTP, every answer checked against what was asked
    process    what fetching keeps in a process: loop, clients; nothing of it survives a fork
    asking     asking again: time limits, back-off, what an engine says when an answer does not serve
    extents    which requests fetch many extents
    url        a URL and its options, which shows no credentials
    place      `Place`: what they have in common with `durable.File`

Each imports only those below it.
"""

from edcache.places.opening import Where, local_path, located, open_place, shown
from edcache.places.place import Place
from edcache.places.spool import Spool
from edcache.places.upload import check_writable
from edcache.places.url import Url

__all__ = ["Place", "Spool", "Url", "Where", "check_writable", "local_path", "located", "open_place", "shown"]
