"""Measure the service under load: an ICD-10-CM model, single texts, 64 connections from a second process, with wrk.

Cases: requests per second and latency over a minute; memory over 100,000 requests; 20 model reloads under load; latency
of valid requests with and without malformed ones.

    python benchmarks/serve.py [load memory reload malformed] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from measure import RESULTS, save

from hinet import HiNetClassifier, load, load_icd10cm

CONNECTIONS = 64
SECONDS = 60
REQUESTS = 100_000  # requests while memory is measured
WARM = 20_000  # requests before that
RELOADS = 20
BODIES = 4_000  # distinct texts
MALFORMED = 200  # minimum number of malformed requests
LARGE = b"a" * (2 << 20)  # more bytes than a body may have
BROKEN = (
    (b"POST /v1/classify", b'{"text": 3}'),
    (b"POST /v1/classify", b'{"text": "a", "other": 1}'),
    (b"POST /v1/classify", b'{"text": "\xff"}'),
    (b"POST /v1/classify", b"[" * 50_000),
    (b"POST /v1/classify", LARGE),
    (b"POST /v1/classify/file", b"no table"),
    (b"POST /v1/explain", b"{"),
    (b"GET /v1/models/..%2f..%2fetc", b""),
    (b"GET /v1/taxonomy?limit=-1", b""),
)
LONGEST = 600.0  # maximum seconds of any step

SCRIPT = """
local bodies, number = {}, 0
for line in io.lines("BODIES") do bodies[#bodies + 1] = line end
local headers = {["Content-Type"] = "application/json"}
request = function()
  number = number % #bodies + 1
  return wrk.format("POST", "/v1/classify", headers, bodies[number])
end
done = function(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    '{"requests": %d, "microseconds": %d, "errors": %d, "p50": %d, "p99": %d, "p99_9": %d, "worst": %d}\\n',
    summary.requests, summary.duration,
    failed.connect + failed.read + failed.write + failed.status + failed.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"""


class Running(NamedTuple):
    """A service and its load generator."""

    process: subprocess.Popen[bytes]
    address: str
    script: Path

    def get(self, path: str) -> Any:
        """Return a JSON response."""
        with urllib.request.urlopen(self.address + path, timeout=LONGEST) as answer:
            return json.load(answer)

    def load(self, seconds: float) -> dict[str, float]:
        """Send single texts for some seconds; return requests per second, latency in milliseconds, and errors."""
        command = [
            "wrk",
            "-t1",
            f"-c{CONNECTIONS}",
            f"-d{max(1, round(seconds))}s",
            "-s",
            str(self.script),
            self.address,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONGEST)
        report = json.loads(done.stdout.splitlines()[-1])
        return {
            "requests": report["requests"],
            "requests_a_second": round(1e6 * report["requests"] / report["microseconds"], 1),
            "errors": report["errors"],
            **{f"{name}_ms": round(report[name] / 1e3, 1) for name in ("p50", "p99", "p99_9", "worst")},
        }

    @property
    def memory_mb(self) -> float:
        """Resident memory of the service."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(status.split("VmRSS:")[1].split()[0]) / 1e3, 1)

    @property
    def version(self) -> str:
        """Version of the model that is served."""
        return str(self.get("/v1/models")["models"][0]["version"])


def main() -> None:
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", choices=["load", "memory", "reload", "malformed", []])
    options.add_argument("--seconds", type=float, default=SECONDS)
    asked = options.parse_args()
    path = RESULTS / "serve.json"
    results = json.loads(path.read_text())["results"] if path.exists() and asked.cases else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        cases = {"load": load_case, "memory": memory_case, "reload": reload_case, "malformed": malformed_case}
        for case in asked.cases or cases:
            with serving(folder) as service:
                results[case] = cases[case](service, folder, asked.seconds)
            print(f"{case:8} " + "  ".join(f"{name} {value}" for name, value in results[case].items()), flush=True)
    save("serve", results)


def prepare(folder: Path) -> None:
    """Train the model, and write the request script."""
    icd = load_icd10cm()
    classifier = HiNetClassifier(icd.taxonomy, vectors=None, random_state=0)
    classifier.fit(icd.train.texts, icd.train.labels, valid=(icd.valid.texts, icd.valid.labels))
    classifier.calibrate()
    classifier.save(folder / "icd")
    texts = random.Random(0).sample(list(icd.test.texts), BODIES)
    (folder / "bodies").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "wrk.lua").write_text(SCRIPT.replace("BODIES", str(folder / "bodies")))


@contextmanager
def serving(folder: Path, *, warm: bool = True) -> Iterator[Running]:
    """Yield a service that is ready, after some requests if ``warm``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("hinet")), "serve", str(folder / "icd"), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        service = Running(process, f"http://127.0.0.1:{port}", folder / "wrk.lua")
        try:
            wait_until(lambda: service.get("/ready"))
            if warm:
                service.load(2)
            yield service
        finally:
            process.terminate()
            try:
                process.wait(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until(look: Any) -> None:
    """Wait until ``look`` returns something without failing."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        try:
            if look():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("the service did not reach the expected state")


def load_case(service: Running, folder: Path, seconds: float) -> dict[str, Any]:
    return service.load(seconds)


def memory_case(service: Running, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the growth of memory over many requests, after the first ones."""
    rate = service.load(2)["requests_a_second"]
    send(service, WARM, rate)
    before = service.memory_mb
    sent = send(service, REQUESTS, rate)
    after = service.memory_mb
    return {"requests": sent, "before_mb": before, "after_mb": after, "growth": round(after / before - 1, 4)}


def send(service: Running, count: int, rate: float) -> int:
    """Send at least ``count`` requests, and return their number."""
    sent = 0
    while sent < count:
        sent += int(service.load((count - sent) / rate + 1)["requests"])
    return sent


def reload_case(service: Running, folder: Path, seconds: float) -> dict[str, Any]:
    """Replace the served model repeatedly under load."""
    classifier, taken = load(folder / "icd"), 0
    with ThreadPoolExecutor(1) as pool:
        figures: list[dict[str, float]] = []
        while taken < RELOADS:
            loading = pool.submit(service.load, 10)
            while not loading.done() and taken < RELOADS:
                version = service.version
                classifier.save(folder / "icd", notes={"reload": taken})
                wait_until(lambda version=version: service.version != version)
                taken += 1
            figures.append(loading.result())
    return {
        "reloads": taken,
        "requests": sum(each["requests"] for each in figures),
        "errors": sum(each["errors"] for each in figures),
        "p99_ms": max(each["p99_ms"] for each in figures),
        "worst_ms": max(each["worst_ms"] for each in figures),
    }


def malformed_case(service: Running, folder: Path, seconds: float) -> dict[str, Any]:
    """Send malformed requests one after the other, and incomplete ones in parallel, under load."""
    quiet = service.load(seconds / 2)
    statuses: list[int] = []
    with ThreadPoolExecutor(1) as pool, ExitStack() as slow:
        for _ in range(CONNECTIONS):
            slow.enter_context(connect(service)).sendall(
                b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"
            )
        loading = pool.submit(service.load, seconds / 2)
        while not loading.done() or len(statuses) < MALFORMED:
            statuses.append(status_of(service, *BROKEN[len(statuses) % len(BROKEN)]))
    meanwhile = loading.result()
    return {
        "malformed_requests": len(statuses),
        "answers_other_than_4xx": sum(status // 100 != 4 for status in statuses),
        "errors_of_others": meanwhile["errors"],
        **{f"{name}_ms_{when}": report[f"{name}_ms"] for when, report in (("without", quiet), ("meanwhile", meanwhile))
           for name in ("p50", "p99")},
    }  # fmt: skip


def connect(service: Running) -> socket.socket:
    host, _, port = service.address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=LONGEST)


def status_of(service: Running, request: bytes, body: bytes) -> int:
    """Return the status of the response to a request."""
    head = (
        b"%s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    )
    with connect(service) as connection:
        connection.sendall(head % (request, len(body)) + body)
        return int(connection.recv(12)[9:])


if __name__ == "__main__":
    main()
