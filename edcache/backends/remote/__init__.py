"""Objects behind a URL: read by request, filled in a spool file.

engines  Which library reads a scheme
extents  Which requests fetch many extents: neighbours together, large ones in parts at a time
hub      A file of a Hugging Face repository: the hub says which commit is meant, our client reads ...
loop     What fetching keeps in a process: fsspec's event loop and the clients in it, made at the ...
object   An object behind a URL as a `ByteSource`: it must stay what it was when it was opened
request  Asking again: what an engine says when an answer does not serve, time limits, and back-off
store    Caches that are objects behind a URL
upload   One file to one object behind a URL: it has its name there when it is whole, and not before
url      A URL and its options
web      One object over HTTP: an answer that does not fit what was asked is not believed
"""
