"""The codec: a sample to a record and back, for a closed list of types.

    errors <- dtypes, packages, images, imaging, pickled, compression      each alone
    registry      the classes that a record may name; packages has those of other libraries
    imagefile     an image as the bytes of its file; imaging decodes them
    schema        text <-> tree of nodes; where leaves lie in a record. Its docstring is the byte layout
    leaves        one value <-> its schema node and wire value
    containers    dict, list, tuple, namedtuple, dataclass, image, object: taken apart, put together
    matchers      the fast way of encoding, compiled from a schema
    encode        Encoder: the general way, and which schemas to make
    decode        Decoder: a schema compiled into closures
    compression   bytes <-> fewer bytes, after the codec and apart from it
    foreign       pickles of other programs, read by a closed list of names; torchsave: files of torch.save

Values, dtypes, shapes and types come back; strides do not. Tensors and arrays are stored in C order, and
come back so (`memory_format`, Fortran order and other strides are dropped). default_collate makes a C-ordered
batch whatever the strides of its samples are, and of records in C order one gather makes it.

Imports go down the list's other way: encode and decode never meet, they share the schema's text. The room
opens no file but the image files that a sample names when it is encoded.
"""

from edcache.codec.compression import Compression, decompress, train_dictionary
from edcache.codec.containers import assembler
from edcache.codec.decode import Decoder, Decoders, Field, aliased
from edcache.codec.dtypes import memory_dtype, tensor_dtype
from edcache.codec.encode import Encoded, Encoder, encoded_bytes
from edcache.codec.imagefile import STORED, Decode, ImageFile, read_through
from edcache.codec.imaging import Decoding, decoded_together
from edcache.codec.pickled import PICKLE_SCHEMA
from edcache.codec.registry import register
from edcache.codec.schema import Node

__all__ = [
    "PICKLE_SCHEMA",
    "STORED",
    "Compression",
    "Decode",
    "Decoder",
    "Decoders",
    "Decoding",
    "Encoded",
    "Encoder",
    "Field",
    "ImageFile",
    "Node",
    "aliased",
    "assembler",
    "decoded_together",
    "decompress",
    "encoded_bytes",
    "memory_dtype",
    "read_through",
    "register",
    "tensor_dtype",
    "train_dictionary",
]
