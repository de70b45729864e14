"""A program that serves with any settings: ``python -m tests.serving.launch '{"port": 8000, …}'``.

With ``--rounds`` it imports everything once, then reads settings line by line and serves each in a forked process. It
writes the id of that process, and continues when the process has ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hinet.labelling.folder import ProjectFolder
from hinet.serving.models import Models
from hinet.serving.server import serve
from hinet.serving.settings import Settings


def settings_of(values: dict[str, Any]) -> Settings:
    models = {name: Path(folder) for name, folder in values.pop("models").items()}
    feedback, project = values.pop("feedback", None), values.pop("project", None)
    tokens = frozenset(map(bytes.fromhex, values.pop("tokens", ())))
    paths = {name: Path(path) for name, path in {"feedback": feedback, "project": project}.items() if path is not None}
    return Settings(models, tokens=tokens, **paths, **values)


def serve_in_rounds() -> None:
    for line in sys.stdin:
        settings = settings_of(json.loads(line))
        project = {} if settings.project is None else {"project": ProjectFolder(settings.project).model}
        Models({**settings.models, **project}, 1).load_all()  # compiles the kernels
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
