"""Conversations become tokens: a chat template writes a text, and says which of it the assistant wrote.

Templates are those that tokenizers ship: Jinja, which is data here, in a sandbox. Where one marks what the assistant
writes by ``{% generation %}``, those marks count. Else the difference of prefixes does: a turn is what the text of the
messages up to it has beyond the text of the messages before it with the prompt for an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.nesting import load_json
from torch_table_loader.text.tokenizers import RowFaultError, Tokenizer, load_file
from torch_table_loader.units import one_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Turns = Literal["all", "last"]

ASSISTANT = "assistant"
"""The role of the messages that are trained."""

_TEMPLATE, _CONFIG, _SPECIAL = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"


@dataclass(frozen=True, slots=True)
class Chat:
    """How conversations become tokens, in place of a tokenizer's name: ``Pack(tokenizer=Chat("models/qwen"), ...)``.

    A row is a list of messages: structs with `role` and `content`, and whatever else the template takes, such as
    `tool_calls`. Fields that are null are left out. Only what the assistant wrote is trained, its end token included.

    Args:
        tokenizer: the folder of a fast Hugging Face tokenizer; or "bytes", with a `template`.
        template: Jinja, or the path of a file that ends with ``.jinja``; None for the one in the folder.
        turns: which answers are trained: "all" or the "last" of a conversation.
        tools: a column with the tools of each conversation: structs, or JSON.
        variables: others of the template, such as ``{"enable_thinking": False}``. No template is told the day.

    Raises:
        ConfigError: a value is wrong.
    """

    loss_mask: ClassVar[str] = "assistant_mask"
    """The column that says which tokens the assistant wrote."""

    tokenizer: str
    template: str | None = None
    turns: Turns = "all"
    tools: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check every field."""
        one_of(get_args(Turns), "Chat: turns", self.turns)
        for name in ("tokenizer", "template", "tools"):
            given = getattr(self, name)
            if not (isinstance(given, str) or (given is None and name != "tokenizer")):
                raise ConfigTypeError(f"Chat: {name} must be a string, got {given!r}")
        try:
            json.dumps(dict(self.variables), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigTypeError(f"Chat: variables must be values of JSON by name, got {self.variables!r}") from error
        if self.tokenizer == "bytes" and self.template is None:
            raise ConfigError("Chat: the tokenizer 'bytes' ships no template; pass template=")

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are read beside the messages."""
        if self.tools is None:
            return ()
        return (self.tools,)

    def load(self) -> ChatTokenizer:
        """Load tokenizer and template.

        Raises:
            ConfigError: there is none, or it cannot be parsed.
            MissingExtraError: a package is not installed.
        """
        encoder = _Encoder.load(self.tokenizer)
        template = _template_of(self)
        said = [encoder.name, template, self.turns, self.beside, json.dumps(dict(self.variables), sort_keys=True)]
        digest = hashlib.sha256(json.dumps([*said, encoder.special]).encode()).hexdigest()
        return ChatTokenizer(
            name=f"chat {digest}",
            encode=_no_text,
            vocabulary=encoder.vocabulary,
            chat=self,
            encoder=encoder,
            template=template,
        )


def _no_text(_: list[str]) -> Sequence[Sequence[int]]:
    raise ConfigError("a chat tokenizer takes conversations, got text")


class _Encoded(NamedTuple):
    """The tokens of a text, and the characters at which each begins and ends."""

    ids: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]


class _Encoder(NamedTuple):
    """A tokenizer that says of which characters each token is, and its special tokens by their names in templates."""

    name: str
    vocabulary: int
    special: Mapping[str, Any]
    tokenizer: Any = None

    @classmethod
    def load(cls, given: str) -> _Encoder:
        if given == "bytes":
            return cls("bytes", 256, {})
        folder = Path(given).expanduser()
        path = folder / "tokenizer.json" if folder.is_dir() else folder
        tokenizer, name, vocabulary = load_file(path)
        special = {**_json_of(path.with_name(_SPECIAL)), **_json_of(path.with_name(_CONFIG))}
        named = {key: _content(value) for key, value in special.items() if key.endswith("_token") and value}
        return cls(name, vocabulary, named, tokenizer)

    def encode(self, texts: list[str]) -> list[_Encoded]:
        """Return the tokens of each text."""
        if self.tokenizer is None:
            return [_bytes_of(text) for text in texts]
        found = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [_covered(each.ids, each.offsets) for each in found]


def _bytes_of(text: str) -> _Encoded:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    at = np.cumsum((ids & 0xC0) != 0x80) - 1
    return _Encoded(ids, at, at + 1)


def _covered(ids: list[int], offsets: list[tuple[int, int]]) -> _Encoded:
    """Return tokens, and which characters each covers: from where the token before ended, as some leave spaces out."""
    start, stop = np.array(offsets, np.int64).reshape(-1, 2).T
    before = np.maximum.accumulate(np.concatenate(([0], stop)))[:-1]
    return _Encoded(np.array(ids, np.int64), np.minimum(start, before), stop)


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("content")
    return value


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found = load_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} must be JSON of a tokenizer, but {error}") from error
    if isinstance(found, dict):
        return found
    return {}


def _template_of(chat: Chat) -> str:
    """Return the text of a template."""
    given, folder = chat.template, Path(chat.tokenizer).expanduser()
    if given is not None and not given.endswith(".jinja"):
        return given
    path = folder / _TEMPLATE if given is None else Path(given).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if given is not None:
            raise ConfigError(f"the chat template {given!r} cannot be read: {error.strerror}") from error
    found = _json_of(folder / _CONFIG).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}.get("default")
    if not isinstance(found, str):
        raise ConfigError(
            f"the tokenizer {chat.tokenizer!r} ships no chat template, neither as {_TEMPLATE} nor in {_CONFIG}; pass "
            "template="
        )
    return found


def _templates() -> Any:
    """Import what renders templates."""
    try:
        from torch_table_loader.text import chat_templates
    except ImportError as error:
        raise MissingExtraError(
            f"chat templates need jinja2 ({error}); pip install 'torch-table-loader[text]'"
        ) from error
    return chat_templates


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTokenizer(Tokenizer):
    """Makes tokens of conversations, and a mask of what the assistant wrote."""

    chat: Chat
    encoder: _Encoder
    template: str

    def __post_init__(self) -> None:
        """Parse the template once, so that a wrong one is refused before anything is read."""
        _templates().compiled(self.template)

    @property
    @override
    def makes(self) -> tuple[str, ...]:
        return (Chat.loss_mask,)

    @override
    def refuses(self, kind: pa.DataType) -> str | None:
        is_list = pt.is_list(kind) or pt.is_large_list(kind)
        if is_list and pt.is_struct(kind.value_type) and kind.value_type.get_field_index("role") >= 0:
            return None
        return "must be a list of messages, which are structs with role and content, for Chat"

    @override
    def columns(self, given: Sequence[Sequence[Any]], id_type: str, remedy: str) -> list[pa.LargeListArray]:
        rows = [row for row, messages in enumerate(given[0]) if messages]
        written = [self._written(row, *(values[row] for values in given)) for row in rows]
        encoded = self.encoder.encode([text for text, _ in written])
        sizes = np.zeros(len(given[0]) + 1, np.int64)
        sizes[1:][rows] = [len(each.ids) for each in encoded]
        masks = [_mask(each, ranges) for each, (_, ranges) in zip(encoded, written, strict=True)]
        offsets = pa.array(np.cumsum(sizes))
        ids = np.concatenate([np.empty(0, np.int64), *(each.ids for each in encoded)])
        if len(ids) and ids.max() > np.iinfo(id_type).max:
            row = next(row for row, each in zip(rows, encoded, strict=True) if each.ids.max(initial=0) == ids.max())
            raise RowFaultError(row, f"{self.name!r} made the id {ids.max()}, and {id_type} does not hold it; {remedy}")
        values = pa.array(ids.astype(id_type)), pa.array(np.concatenate([np.empty(0, np.uint8), *masks]))
        return [pa.LargeListArray.from_arrays(offsets, each) for each in values]

    def _written(self, row: int, messages: Any, tools: Any = None) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and from where to where the assistant wrote."""
        try:
            turns = _plain(messages)
            known = {**self.encoder.special, **self.chat.variables}
            if tools is not None:
                known["tools"] = json.loads(tools) if isinstance(tools, str) else _plain(tools)
            marked = self._rendered(turns, known, ask=False)
            text, ranges = _templates().ranges_of(marked)
            if not _templates().has_marks(self.template):
                ranges = self._by_prefixes(turns, known, text)
        except ValueError as error:
            raise RowFaultError(row, f"the chat template failed: {error}") from error
        return text, ranges[-1:] if self.chat.turns == "last" else ranges

    def _rendered(self, messages: Sequence[Any], known: Mapping[str, Any], *, ask: bool) -> str:
        templates = _templates()
        try:
            found: str = templates.compiled(self.template).render(
                **{"tools": None, "documents": None, **known}, messages=messages, add_generation_prompt=ask
            )
        except templates.FAULTS as error:
            hint = ""
            if "strftime_now" in str(error):
                hint = "; no template is told the day, since tokens must not depend on it: pass it in Chat(variables=)"
            raise ValueError(f"{error}{hint}") from error
        return found

    def _by_prefixes(self, messages: Sequence[Any], known: Mapping[str, Any], text: str) -> list[tuple[int, int]]:
        """Return what the assistant wrote as differences of texts, each of which must begin the whole one."""
        answers = [at for at, message in enumerate(messages) if message.get("role") == ASSISTANT]
        found = []
        for at in answers[-1:] if self.chat.turns == "last" else answers:
            before = self._rendered(messages[:at], known, ask=True)
            upto = text if at == len(messages) - 1 else self._rendered(messages[: at + 1], known, ask=False)
            if not (text.startswith(upto) and upto.startswith(before)):
                raise ValueError(
                    f"it writes the messages up to number {at} otherwise where an answer or others follow, so that "
                    'what the assistant wrote cannot be told; pass turns="last", or a template= with {% generation %}'
                )
            found.append((len(before), len(upto)))
        return found


def _plain(value: Any) -> Any:
    """Return values as a template gets them, without fields that are null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _mask(tokens: _Encoded, ranges: Sequence[tuple[int, int]]) -> NDArray[np.uint8]:
    """Return 1 for tokens that have a character of a range."""
    found = np.zeros(len(tokens.ids), np.uint8)
    for low, high in ranges:
        found[(tokens.start < high) & (tokens.stop > low)] = 1
    return found
