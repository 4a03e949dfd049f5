"""Text to tokens to batches: corpus -> tokenizer -> memory-mapped token files -> deterministic stream.

`longshort.data.stream` is not imported here: it loads torch, which the processes that tokenize do without.
"""

from longshort.data.default import default_data
from longshort.data.errors import DataError
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer, load_tokenizer
from longshort.data.tokens import TokenFile

__all__ = ["BPETokenizer", "ByteTokenizer", "DataError", "TokenFile", "Tokenizer", "default_data", "load_tokenizer"]
