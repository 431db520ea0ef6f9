"""Objects behind URLs.

    store      RemoteStore: the backend of URLs
    upload     one file to one object, in parts where the server keeps them
    remote     RemoteObject: one state of an object, many extents of it by one concurrent fetch
    engines    which library reads a scheme: fsspec, and our own client where the scheme speaks HTTP
    hub        a file of a Hugging Face repository, at one commit
    web        one object over HTTP, every answer checked against what was asked
    process    what fetching keeps in a process: loop, clients; nothing of it survives a fork
    asking     asking again: time limits, back-off, what an engine says when an answer does not serve
    extents    which requests fetch many extents
    url        a URL and its options, which shows no credentials

Each imports only those below it.
"""
