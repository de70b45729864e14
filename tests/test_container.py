"""Checks of the Dockerfile and compose.yaml that do not need Docker."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from hinet.serving.settings import Settings

ROOT = Path(__file__).parents[1]
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


class Instruction(NamedTuple):
    name: str
    text: str


@pytest.fixture(scope="module")
def instructions() -> list[Instruction]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def last(instructions: list[Instruction], name: str) -> str:
    return [each.text for each in instructions if each.name == name][-1]


def test_dockerfile_uses_known_instructions_and_pinned_bases(instructions: list[Instruction]) -> None:
    assert {each.name for each in instructions} <= KNOWN
    bases = [each.text.split()[0] for each in instructions if each.name == "FROM"]
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert "torch" not in (ROOT / "Dockerfile").read_text().replace("without torch", "")


def test_copied_files_exist_and_are_in_the_build_context(instructions: list[Instruction]) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    for each in instructions:
        if each.name == "COPY" and "--from=" not in each.text:
            for source in each.text.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), source
    assert sent == {source for each in instructions if each.name == "COPY" and "--from" not in each.text
                    for source in each.text.split()[:-1]}  # fmt: skip


def test_image_is_precompiled_unprivileged_and_has_a_health_check(instructions: list[Instruction]) -> None:
    names = [each.name for each in instructions]
    assert any("hinet compile" in each.text for each in instructions if each.name == "RUN")
    assert int(last(instructions, "USER")) > 0
    assert names.index("USER") > len(names) - 1 - names[::-1].index(
        "RUN"
    )  # installs run before the switch to that user
    health = last(instructions, "HEALTHCHECK")
    command = json.loads(health[health.index("CMD") + 3 :])
    compile(command[-1], "HEALTHCHECK", "exec")
    assert "/ready" in command[-1]
    port = str(Settings({}).port)
    assert f":{port}/" in command[-1]
    assert last(instructions, "EXPOSE") == port
    assert json.loads(last(instructions, "ENTRYPOINT"))[1] == "serve"
    assert json.loads(last(instructions, "CMD"))


def test_compose_service_is_local_and_restricted() -> None:
    composed = yaml.safe_load((ROOT / "compose.yaml").read_text())
    (service,) = composed["services"].values()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    volumes = {volume.split(":")[0] for volume in service["volumes"]}
    assert {volume for volume in volumes if not volume.startswith(".")} == {*composed["volumes"]}
    kept = Path(service["command"][service["command"].index("--feedback") + 1])
    assert f"{kept.parent}" in {volume.split(":")[1] for volume in service["volumes"]}
    assert float(service["stop_grace_period"].removesuffix("s")) > Settings({}).grace
