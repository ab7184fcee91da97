"""Demonstrations from a file: conversations, one a line, that become groups of a trajectory each.

The format is TRL's for supervised training, https://huggingface.co/docs/trl/dataset_formats:
`{"messages": [{"role": "system", "content": …}, {"role": "user", "content": …}, {"role": "assistant", "content": …}]}`.
Beside them may stand the schemas of tools, as `tools`, and the format in which the assistant calls them, `call_format`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key
from tsr_lightning.search.simulator import ChatFormat
from tsr_lightning.tool_calls import CALL_FORMAT_NAMES, offer_text
from tsr_lightning.trajectory import ROLES, Ended, Group, Message, Origin, Trajectory, Turn

_KEY = "data.demonstrations.path"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: one line of the file."""

    line: int  # counted from 1
    exchanges: tuple[tuple[tuple[Message, ...], str], ...]  # [T >= 1] messages, and the assistant's answer to them


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrated conversations. Each becomes a group of one trajectory, added to the rollout's groups.

    Prompts are those that the run's chat format and `data.context` give, so what is trained on looks as in a rollout.
    The messages are the file's own: begin with the environment's instructions as a system message, as
    `callbacks.ConversationLog` does. Every conversation counts as a success, without a reward.

    Args:
        path: a file of JSON lines, each with `messages`, of which every assistant message answers those before it.
        count: conversations per epoch, drawn without repeats until all were used.
        epochs: in how many epochs, from the first on, they are trained on; null is all.
    """

    path: str
    count: int = 16
    epochs: int | None = None

    def __post_init__(self) -> None:
        require(self.count >= 1, "Demonstrations.count", self.count, "give 1 or more, or data.demonstrations: null")
        if self.epochs is not None:
            require(self.epochs >= 0, "Demonstrations.epochs", self.epochs, "give 0 or more, or null for all epochs")

    @cached_property
    def conversations(self) -> list[Conversation]:
        """All of the file, which is read once.

        Raises:
            ConfigError: where a line is not as above.
        """
        path = Path(self.path)
        require(path.is_file(), _KEY, self.path, "there is no such file, so give one of JSON lines with messages")
        try:
            lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators within a text
        except UnicodeDecodeError as error:
            raise ConfigError(f"{_KEY} is {self.path!r}: it is no UTF-8 text, so write it as UTF-8") from error
        found = [self._conversation(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        remedy = f"the file has {len(found)} conversations; give at most as many, or a longer file"
        require(self.count <= len(found), "data.demonstrations.count", self.count, remedy)
        return found

    def lasts(self, epoch: int) -> bool:
        """True if an epoch trains on the demonstrations."""
        return self.epochs is None or epoch < self.epochs

    def check(self, chat: ChatFormat, context_tokens: int) -> None:
        """Raises a ConfigError for the first conversation with a turn that is longer than the context."""
        for conversation in self.conversations:
            self._trajectory(conversation, chat, context_tokens)

    def groups(self, key: Key, epoch: int, chat: ChatFormat, context_tokens: int) -> list[Group]:
        """Groups of an epoch's demonstrations, the same on every rank; none from `epochs` on.

        Args:
            key: the run's.
            epoch: counts the draws, so that nothing but its number is needed to resume.
            chat: builds the prompts.
            context_tokens: the most tokens of a prompt and its response.
        """
        if not self.lasts(epoch):
            return []
        return [
            Group(conversation.line, (self._trajectory(conversation, chat, context_tokens),))
            for conversation in self._drawn(key, epoch)
        ]

    def _drawn(self, key: Key, epoch: int) -> list[Conversation]:
        """The epoch's part of an endless list: all conversations shuffled, then shuffled anew, and so on."""
        total = len(self.conversations)
        drawn = range(self.count * epoch, self.count * (epoch + 1))
        orders = {
            shuffle: key.fold_in("demonstrations", shuffle).generator().permutation(total)
            for shuffle in {number // total for number in drawn}
        }
        return [self.conversations[orders[number // total][number % total]] for number in drawn]

    def _trajectory(self, conversation: Conversation, chat: ChatFormat, context_tokens: int) -> Trajectory:
        turns: list[Turn] = []
        for messages, text in conversation.exchanges:
            prompt = chat.prompt(turns, messages)
            response = chat.write(text, prompt)
            read = chat.read(response, prompt)
            length = len(prompt) + len(response)
            self._require(
                length <= context_tokens,
                conversation.line,
                f"is longer than the context: its turn {len(turns) + 1} has {length} tokens, of at most "
                f"{context_tokens}; shorten it, or show fewer turns by data.context",
            )
            turns.append(
                Turn(
                    prompt=prompt,
                    response=response,
                    behaviour_logprobs=(0.0,) * len(response),
                    finished=True,
                    messages=messages,
                    text=read,
                    reward=0.0,
                    valid=True,
                    effective=True,
                    action=read,
                )
            )
        return Trajectory(
            instance=conversation.line,
            member=0,
            strategy=type(self).__name__,
            origin=Origin.DEMONSTRATED,
            turns=tuple(turns),
            ended=Ended.SUCCEEDED,
            final_prompt=(),
            final_messages=(),
        )

    def _conversation(self, number: int, line: str) -> Conversation:
        try:
            record = json.loads(line)
            said = [(message["role"], message["content"]) for message in record["messages"]]
        except json.JSONDecodeError as error:
            self._refuse(number, f"is no JSON ({error.msg}), so write one conversation per line", error)
        except (KeyError, TypeError) as error:
            self._refuse(number, 'has no "messages" with "role" and "content" each, so write them as TRL does', error)
        texts = all(isinstance(content, str) for _, content in said)
        self._require(texts, number, "has a content that is no text, so write every content as one string")
        roles = [role for role, _ in said]
        unknown = [role for role in roles if role not in ROLES]
        known = ", ".join(ROLES)
        self._require(not unknown, number, f"has the role {unknown[0] if unknown else ''!r}; give one of {known}")
        said = [(role, self._earlier_offer(number, content) if role == "tools" else content) for role, content in said]
        if record.get("tools"):
            begin = sum(1 for _ in takewhile(lambda role: role == "system", roles))
            said.insert(begin, ("tools", self._offer(number, record)))
        whole = all(_is_whole(content) for _, content in said)
        self._require(whole, number, "has half of a surrogate pair, which is no character, so write the whole pair")
        self._require("assistant" in roles, number, "has no assistant message, so there is nothing to learn from")
        exchanges: list[tuple[tuple[Message, ...], str]] = []
        asked: tuple[Message, ...] = ()
        for role, content in said:
            if role != "assistant":
                asked += (Message(role, content),)
                continue
            self._require(any(message.role != "system" for message in asked), number, _order_problem(roles))
            exchanges.append((asked, content))
            asked = ()
        self._require(not asked, number, _order_problem(roles))
        return Conversation(number, tuple(exchanges))

    def _earlier_offer(self, number: int, content: str) -> str:
        """The content of a message of tools, which earlier versions wrote."""
        try:
            offer = json.loads(content)
        except json.JSONDecodeError:
            offer = None
        is_offer = isinstance(offer, dict)
        self._require(is_offer, number, 'has a message of tools, so write their schemas as "tools" beside "messages"')
        return self._offer(number, offer)

    def _offer(self, number: int, record: Mapping[str, Any]) -> str:
        """The `tools` message of an environment, made of a line's columns."""
        tools, call_format = record.get("tools", ()), record.get("call_format", "hermes")
        schemas = isinstance(tools, list) and all(isinstance(each, dict) for each in tools)
        self._require(schemas, number, "has tools that are no list of schemas, so write them as TRL does")
        known = ", ".join(CALL_FORMAT_NAMES)
        self._require(
            call_format in CALL_FORMAT_NAMES, number, f"has the call_format {call_format!r}; give one of {known}"
        )
        return offer_text(tools, call_format)

    def _require(self, valid: bool, line: int, problem: str) -> None:
        require(valid, _KEY, self.path, f"line {line} {problem}")

    def _refuse(self, line: int, problem: str, cause: Exception) -> NoReturn:
        raise ConfigError(f"{_KEY} is {self.path!r}: line {line} {problem}") from cause


def _is_whole(text: str) -> bool:
    """False of a text with half of a surrogate pair, as a JSON escape can write it, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _order_problem(roles: Sequence[str]) -> str:
    order = ", ".join(map(str, roles[:6])) + (", …" if len(roles) > 6 else "")
    return (
        f"has its roles out of order ({order}); before every assistant message write the user's or a tool's, and end "
        "with an assistant message"
    )
