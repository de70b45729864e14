"""Models on the Hugging Face hub: from its cache on this machine, or fetched after one quick question to the hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hinet.errors import HiNetError

TIMEOUT = 5.0  # seconds that the hub has to answer


def hub_folder(
    names: Sequence[str], patterns: Sequence[str], is_complete: Callable[[Path], bool], *, local: bool = False
) -> Path:
    """Return the folder of the first model that is in the cache, or else on the hub; fetch files of these patterns.

    With ``local`` nothing is fetched. The hub is asked once, without retries.

    Raises
    ------
    HiNetError
        If there is none; the message starts with the reason.
    """
    import huggingface_hub

    for name in names:
        found = huggingface_hub.try_to_load_from_cache(name, "config.json")
        if isinstance(found, str) and is_complete(Path(found).parent):
            return Path(found).parent
    if local:
        raise HiNetError("it was not fetched from the Hugging Face hub before")
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise HiNetError("it is not in the cache of the Hugging Face hub, and HF_HUB_OFFLINE is set")
    name = _name_on_hub(names)
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns), etag_timeout=TIMEOUT))
    except Exception as error:  # many kinds: no network, no permission, a full disk
        raise HiNetError(f"{name} cannot be fetched from the Hugging Face hub ({_reason(error)})") from None


def _name_on_hub(names: Sequence[str]) -> str:
    """Return the first name that the hub knows; the first failed connection ends the search."""
    import huggingface_hub
    from huggingface_hub.utils import RepositoryNotFoundError

    for name in names:
        try:
            huggingface_hub.HfApi().model_info(name, timeout=TIMEOUT)
        except RepositoryNotFoundError:
            continue
        except Exception as error:  # many kinds, by the version of the client
            raise HiNetError(f"the Hugging Face hub cannot be reached ({_reason(error)})") from None
        return name
    raise HiNetError("the Hugging Face hub has no public model of this name")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
