"""Requests that are answered together."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from hinet.serving.answers import Question
from hinet.serving.models import Batcher

CLIENTS, REQUESTS, SECONDS = 3, 300, 60.0


def test_no_request_waits_for_a_search_that_has_ended() -> None:
    answerer = SimpleNamespace(answer=lambda texts, question, observe: [{"text": text} for text in texts])
    model: Any = SimpleNamespace(answerer=answerer)

    async def ask() -> None:
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(executor, 1, lambda jobs: None, lambda *_: None)

            async def client(name: int) -> None:
                for number in range(REQUESTS):
                    answer = batcher.answer(model, [f"{name} {number}"], Question())
                    assert await asyncio.wait_for(answer, SECONDS) == [{"text": f"{name} {number}"}]

            await asyncio.gather(*map(client, range(CLIENTS)))

    asyncio.run(ask())
