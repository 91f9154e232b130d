"""Conversations, chat templates, and what transformers makes of them.

    python -m tests.tables.chats

writes the small tokenizer in ``chat/``, and ``chat/truth.json`` with the tokens and masks of transformers' own
``apply_chat_template(return_assistant_tokens_mask=True)``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

FOLDER = Path(__file__).parent / "chat"

_HEAD = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
"""
_BODY = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}<|im_start|>assistant
OPEN{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- "<call>" ~ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
{%- endfor %}<|im_end|>
CLOSE{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
MARKED = (_HEAD + _BODY).replace("OPEN", "{% generation %}").replace("CLOSE", "{% endgeneration %}")
PLAIN = (_HEAD + _BODY).replace("OPEN", "").replace("CLOSE", "")
TEMPLATES = {
    "marked": MARKED,
    "header": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "<|im_start|>{{ m.content | trim }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "namespaced": "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}"
    "{{ ns.count }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% continue %}{% endif %}{{ m.content }}{% if ns.count > 90 %}{% break %}{% endif %}{% endfor %}",
}


def says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CHATS: list[list[dict[str, Any]]] = [
    [says("user", "hello there"), says("assistant", "how are you?")],
    [says("system", "be brief"), says("user", "the quick fox"), says("assistant", "  lazy dog é 漢 jumps")],
    [
        *(says("user", "hello\n\n"), says("assistant", "one"), says("user", "<b>again</b>")),
        *(says("assistant", "two 🦊 x"), says("user", "and?")),
    ],
    [
        says("user", "sum"),
        says("assistant", "", tool_calls=[{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}]),
        says("tool", "3"),
        says("assistant", "it is 3"),
    ],
    [says("user", "nobody answers")],
    [says("assistant", "first word"), says("user", "hello")],
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds é", "parameters": {"x": "integer"}}}]


def write_tokenizer() -> Any:
    """Train the tokenizer, and return it as transformers opens it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator(["the quick fox jumps over the lazy dog", "hello there, how are you? assistant"], trainer)
    named = {"bos_token": special[0], "eos_token": special[1]}
    opened: Any = cast("Any", PreTrainedTokenizerFast)(tokenizer_object=made, **named)
    opened.chat_template = PLAIN
    opened.save_pretrained(FOLDER)
    return opened


def truth(opened: Any) -> dict[str, list[Any]]:
    """Return ids and masks by template, conversation by conversation."""
    found: dict[str, list[Any]] = {}
    for name, template in TEMPLATES.items():
        found[name] = []
        for chat in CHATS:
            asked = {"tools": TOOLS, "chat_template": template, "return_dict": True, "tokenize": True}
            each = opened.apply_chat_template(chat, return_assistant_tokens_mask=True, **asked)
            found[name].append([each["input_ids"], each["assistant_masks"]])
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "truth.json").write_text(json.dumps(truth(write_tokenizer())) + "\n")
