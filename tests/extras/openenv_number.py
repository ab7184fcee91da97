"""An environment of OpenEnv, and a server of it: guess a number that the seed hides."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Told(Observation):
    text: str


class Hidden(State):
    number: int = 0


class Number(Environment[Guess, Told, Hidden]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = Hidden()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Told:
        self._state = Hidden(number=random.Random(seed).randint(1, 9))
        return Told(text="Guess a number from 1 to 9.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Told:
        self._state.step_count += 1
        way = action.number - self._state.number
        return Told(text="too high" if way > 0 else "too low" if way else "right", reward=float(not way), done=not way)

    @property
    def state(self) -> Hidden:
        return self._state


@contextmanager
def served(sessions: int) -> Iterator[str]:
    """The address of a server in a thread."""
    app = create_fastapi_app(Number, Guess, Told, max_concurrent_envs=sessions)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
