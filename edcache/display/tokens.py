"""Text of tokens, by a tokenizer of transformers."""

from __future__ import annotations

from edcache.base import MissingDependencyError, OptionError, foreign_code
from edcache.display.cells import Detokenizer


def detokenizer(name: str) -> Detokenizer:
    """Load a tokenizer from files of this machine: a folder, or the name of one that was downloaded before.

    The function that it returns gives None for numbers that are no tokens: beyond the vocabulary, or all 0 and 1, as of
    an attention mask. Negative numbers, which mark what a loss leaves out, have no text.

    Raises:
        MissingDependencyError: transformers is not installed.
        OptionError: 'no tokenizer at "./tok"; give its folder, or download it first'.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingDependencyError("a tokenizer takes transformers; pip install transformers") from None

    def absent(error: Exception) -> OptionError:
        reason = f"{type(error).__name__} when transformers loads it from files"
        remedy = "give the folder of its tokenizer.json, or the name of one that transformers has downloaded"
        return OptionError(f'no tokenizer at "{name}": {reason}; {remedy}', option="tokenizer")

    with foreign_code(absent):
        # Not from far, and without code of the tokenizer's own.
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        size = len(tokenizer)

    def text(numbers: list[int]) -> str | None:
        tokens = [number for number in numbers if number >= 0]
        return str(tokenizer.decode(tokens)) if 1 < max(tokens, default=0) < size else None

    return text
