"""The screen of `tsr play`: prompts as the policy gets them, and a person's answers, line by line."""

import sys
from contextlib import suppress
from io import TextIOWrapper
from math import exp

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.boundary import Call, final
from tsr_lightning.errors import ConfigError, printable
from tsr_lightning.policy.chat import Chat
from tsr_lightning.rollout.person import Move
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Node

with suppress(ImportError):
    import readline  # noqa: F401  (`input` then has its editing and history)

HELP = """Type a response as the policy would write it; a line that ends with \\ goes on in the next one. Or
  :policy  ask the policy for a response, :oracle the environment's own solver; an empty line then plays it
  :undo    take the last turn back
  :legal   list what can be played, where the environment knows
  :prompt  show the whole prompt, as the policy gets it
  :next    end this game and begin another, :quit end it"""


_MOVES = frozenset(move.value for move in Move)
_ESCAPED = "surrogateescape"
_OVER = "The episode is over: :undo, :next or :quit"


class Terminal:
    """Shows a game on standard output and reads moves from standard input, whose end is `:quit`.

    Args:
        simulator: builds prompts and bounds responses.
        chat: its chat format.
    """

    def __init__(self, simulator: TurnSimulator, chat: Chat) -> None:
        self._simulator = simulator
        self._chat = chat
        if isinstance(sys.stdin, TextIOWrapper) and sys.stdin.errors != _ESCAPED:
            sys.stdin.reconfigure(errors=_ESCAPED)  # so that bytes that are no text end no game
        self.goes_on = True  # after this game

    def show(self, node: Node) -> None:
        if node.turn is None:
            _say(f"\ninstance {node.driver.instance}, score {node.env_score:.4g}; :help lists what can be typed")
            _say(self._prompt_text(node))
        else:
            _say(f"\n{_outcome(node)}")
            for message in node.snapshot.messages:
                _say(f"{message.role}: {message.content}")
        if node.snapshot.ended is not None:
            _say(f"The episode has ended: {node.snapshot.ended.value}; :undo, :next or :quit")

    def offer(self, suggested: Node, by: Move) -> None:
        assert suggested.turn is not None
        chance = f" gives it the probability {exp(suggested.logprob):.3g}" if by is Move.POLICY else "'s"
        _say(f"{suggested.turn.text}\n(the {by.name.lower()}{chance}; an empty line plays it)")

    def ask(self, node: Node, suggested: Node | None) -> Move | str:
        while True:
            line = _line(f"turn {node.depth + 1}> ")
            if line == ":help":
                _say(HELP)
            elif line == ":prompt":
                _say(self._prompt_text(node))
            elif line == ":legal":
                _say("\n".join(self._legal_actions(node)) or "the environment lists none")
            elif problem := self._problem(line, node, suggested):
                _say(problem)
            else:
                self.goes_on = line != Move.QUIT.value
                return Move(line) if line in _MOVES else line

    def _problem(self, line: str, node: Node, suggested: Node | None) -> str:
        """Why a line cannot be played; empty where it can."""
        if not _is_text(line):
            return "that is no text: type it again"
        if node.done and line in ("", Move.POLICY.value, Move.ORACLE.value):
            return _OVER
        if line not in _MOVES:
            return self._unfit(line, node)
        move = Move(line)
        if move is Move.TAKE and suggested is None:
            return "nothing is suggested here: type a response, or ask with :policy or :oracle"
        if move is Move.UNDO and node.parent is None:
            return "this is the first state"
        if move is Move.ORACLE and not isinstance(self._env(node), HasOracle):
            return "the environment has no oracle"
        return ""

    def _unfit(self, text: str, node: Node) -> str:
        """Why a text could not be the policy's response; empty where it could."""
        if text.startswith(":"):
            return f"{text} is no command, as :help lists them; a response that begins so takes a space before it"
        if node.done:
            return _OVER
        most = self._simulator.token_budget(node)
        try:
            length = len(self._chat.write(text, self._simulator.prompt(node)))
        except ConfigError as error:
            return str(error)
        return f"that has {length} tokens, of at most {most}: shorten it" if length > most else ""

    def _prompt_text(self, node: Node) -> str:
        ids = list(self._simulator.prompt(node))
        return self._chat.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)

    def _env(self, node: Node) -> Branchable:
        return self._simulator.envs[node.driver.env]

    def _legal_actions(self, node: Node) -> list[str]:
        env = self._env(node)
        if node.done or not isinstance(env, HasLegalActions):
            return []
        env.set_state(node.snapshot.state)
        return final(Call(env, "legal_actions", node.driver.instance), env.legal_actions)


def _outcome(node: Node) -> str:
    """The outcome of the turn that led to a state, in words."""
    assert node.turn is not None
    remarks = [
        *([] if node.turn.valid else ["no valid action"]),
        *([] if node.turn.effective else ["nothing changed"]),
    ]
    figures = f"reward {node.turn.reward:.4g}, return {node.episode_return:.4g}, score {node.env_score:.4g}"
    return ", ".join([*remarks, figures, f"budget left {node.snapshot.remaining}"])


def _line(prompt: str) -> str:
    try:
        line = input(prompt)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{input('... ')}"
        return line
    except (EOFError, KeyboardInterrupt):
        print()
        return Move.QUIT.value


def _is_text(line: str) -> bool:
    """False where a line has bytes that standard input could not decode."""
    return not any("\ud800" <= char <= "\udfff" for char in line)


def _say(text: str) -> None:
    print(printable(text), flush=True)
