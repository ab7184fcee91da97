"""Environments as a taskset of verifiers, played over its own interception by a model that is an oracle."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="verifiers is an extra: make test-extras EXTRAS=verifiers")
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import environment_class, taskset_config_type

from tsr_lightning.envs.make import make_env

SEED, KWARGS = 3, {"size": [5, 5]}


class Oracle(BaseHTTPRequestHandler):
    """Answers a conversation as the oracle does after the same responses."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        env = make_env("tsr/Sokoban-v0", **KWARGS)
        env.reset(seed=SEED)
        for message in asked["messages"]:
            if message["role"] == "assistant":
                env.step(message["content"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": env.oracle()}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "1", "object": "chat.completion", "created": 0, "model": "oracle", "usage": usage}
        body = json.dumps({**told, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def oracle_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Oracle)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


async def played(env: vf.Env, task: vf.Task, url: str) -> vf.Episode:
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
    async with env.serving():
        return await env.run_episode(task, vf.ModelContext(model="oracle", client=client))


def test_an_oracle_wins_an_episode(oracle_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"from tsr_lightning.outward.verifiers import {names}" for names in ("*", "__all__")]
    (tmp_path / "tsr_tasks.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    taskset = taskset_config_type("tsr-tasks")(id="tsr-tasks", env="tsr/Sokoban-v0", env_kwargs=KWARGS, first_seed=SEED)
    made = environment_class("tsr-tasks")
    config = made.__orig_bases__[0].__args__[0]
    env = made(config(taskset=taskset, player={"harness": {"id": "direct_harness"}}))
    [task] = env.taskset.take(1)
    player = make_env("tsr/Sokoban-v0", **KWARGS)
    observation, _ = player.reset(seed=SEED)
    assert (task.data.system_prompt, task.data.prompt) == (player.instructions, observation)
    episode = asyncio.run(played(env, task, oracle_url))
    assert episode.ok, episode.errors
    [trace] = episode.traces
    responses, total, ended = [], 0.0, False
    while not ended:
        responses.append(player.oracle())
        _, reward, terminated, truncated, _ = player.step(responses[-1])
        total, ended = total + reward, terminated or truncated
    assert [message.content for message in trace.branches[-1].messages if message.role == "assistant"] == responses
    assert trace.reward == pytest.approx(total)
    assert trace.metrics == {"success": 1.0, "return": pytest.approx(total), "valid_actions": 1.0}
