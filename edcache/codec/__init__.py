"""A sample to the bytes of a record, and back.

compression  Compression of records: one zstd frame each, with its content size and without a ...
containers   Containers: a value taken apart into its children, and put together again
decode       A record to its sample
dtypes       dtype <-> its text in a schema, for numpy and torch
encode       A sample to a record
foreign      Pickles of other programs, read by a closed list of names; nothing that they name is ...
imagefile    ImageFile: an image as the bytes of its file
images       PIL images: taken apart into plain values, and built again from them
imaging      The bytes of an image file to a picture, an array or a tensor
leaves       Leaves: one Python value <-> the JSON of its schema node and its wire value
matchers     Matchers: the fast way from a sample to its wire values, for samples shaped like an ...
packages     Objects of other libraries as trees of ordinary values: a fixed list, which no file can ...
pickled      The pickle codec: a record is one pickle of protocol 5
registry     The classes that a record may name: registered ones, a fixed list's, and namedtuples ...
schema       The schema of a sample, and where its leaves lie in a record
torchsave    Files of torch.save, both formats, read by foreign's closed list of names; trusted ones ...
"""

from edcache.codec.compression import Compression, decompress, decompress_into, most_content, train_dictionary
from edcache.codec.containers import assembler
from edcache.codec.decode import Decoder, Decoders, Field, aliased
from edcache.codec.dtypes import array_nbytes, check_shape, memory_dtype, parse, tensor_dtype
from edcache.codec.encode import Encoder
from edcache.codec.foreign import MOST_NBYTES, restored
from edcache.codec.imagefile import STORED, Decode, ImageFile, read_through
from edcache.codec.imaging import Decoding, decoded_together
from edcache.codec.pickled import PICKLE_SCHEMA
from edcache.codec.registry import register
from edcache.codec.schema import Node
from edcache.codec.torchsave import torch_loaded

__all__ = [
    "MOST_NBYTES",
    "PICKLE_SCHEMA",
    "STORED",
    "Compression",
    "Decode",
    "Decoder",
    "Decoders",
    "Decoding",
    "Encoder",
    "Field",
    "ImageFile",
    "Node",
    "aliased",
    "array_nbytes",
    "assembler",
    "check_shape",
    "decoded_together",
    "decompress",
    "decompress_into",
    "memory_dtype",
    "most_content",
    "parse",
    "read_through",
    "register",
    "restored",
    "tensor_dtype",
    "torch_loaded",
    "train_dictionary",
]
