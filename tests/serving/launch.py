"""A program that serves with any settings: ``python -m tests.serving.launch '{"port": 8000, …}'``.

With ``--rounds`` it loads everything once, then reads settings line by line, and serves with each in a process of its
own that is there at once; it writes the number of that process, and goes on when it has ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hinet.serving.models import Models
from hinet.serving.server import serve
from hinet.serving.settings import Settings


def settings_of(values: dict[str, Any]) -> Settings:
    models = {name: Path(folder) for name, folder in values.pop("models").items()}
    feedback = values.pop("feedback", None)
    return Settings(models, feedback=None if feedback is None else Path(feedback), **values)


def serve_in_rounds() -> None:
    for line in sys.stdin:
        settings = settings_of(json.loads(line))
        Models(settings.models, 1).load_all()  # so that kernels are there
        child = os.fork()
        if not child:
            serve(settings)
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os.waitpid(child, 0)


if __name__ == "__main__":
    if sys.argv[1] == "--rounds":
        serve_in_rounds()
    else:
        serve(settings_of(json.loads(sys.argv[1])))
