"""The bytes of a labels.arrow, made in memory."""

from edcache.format.label_file import LabelFile


def pack_labels(labels):
    """The Arrow IPC file, and the bytes of the table at its end."""
    data = bytearray()
    file = LabelFile(data.extend, labels.schema)
    file.write(labels)
    return data, file.finish().table_nbytes
