"""Messages as chat templates get them: plain fields, text, and where an unfinished one ends.

Never renders, and never changes the caller's messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.errors import InvalidRequest

Message = dict[str, Any]

_MARK = "TREADLE-CONTINUES-HERE "
"""Put behind the text of a message that is to be continued. The space at its end shows whether the
template trims what messages say."""


def present(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages without absent fields: templates ask whether a key is there, not for its None.
    Parts of a content must be text."""
    result = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest("each message must be a mapping", param="messages")
        kept = {key: value for key, value in message.items() if value is not None}
        if isinstance(kept.get("tool_calls"), list | tuple):
            kept["tool_calls"] = [_with_arguments(call) for call in kept["tool_calls"]]
        result.append(_with_reasoning(kept))
        _check_content(result[-1].get("content", ""), f"messages[{index}].content")
    return result


def joined(messages: Sequence[Message]) -> list[Message]:
    """The messages with the text parts of each content as one text, a line break between them."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list | tuple)
        else message
        for message in messages
    ]


def marked(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages with a mark at the end of the last one's text, and that text."""
    content = messages[-1].get("content") if messages else None
    if not content:
        raise InvalidRequest(
            "continue_final_message is set, but the last message has no text to continue",
            param="messages",
        )
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + _MARK}], content
    text = content[-1]["text"]
    parts = [*content[:-1], {**content[-1], "text": text + _MARK}]
    return [*messages[:-1], {**messages[-1], "content": parts}], text


def cut_at_mark(prompt: str, text: str) -> str:
    """The prompt up to where the last message's text ends in it."""
    at = prompt.rfind(_MARK.rstrip())
    if at < 0 or text.strip() not in prompt:
        raise InvalidRequest(
            "continue_final_message is set, but the chat template leaves out part of the last "
            "message",
            param="messages",
        )
    trimmed = not prompt.startswith(_MARK, at)
    return prompt[:at].rstrip() if trimmed else prompt[:at]


def _with_reasoning(message: Message) -> Message:
    """Reasoning goes by several names; templates read the first, and one family the second."""
    for name in ("reasoning_content", "thinking", "reasoning"):
        if name in message:
            return {"thinking": message[name], **message, "reasoning_content": message[name]}
    return message


def _with_arguments(call: Any) -> Any:
    """Clients send arguments back as they got them, as the text of a JSON object; templates write
    objects out themselves."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:  # then it is what the model said, and stays that
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _check_content(content: object, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        raise InvalidRequest(
            f"{where} is of type {type(content).__name__}; it must be text or a list of parts",
            param=where,
        )
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise InvalidRequest(
                f"{place}.type is {kind!r}; only text is supported", param=f"{place}.type"
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{place}.text is missing", param=f"{place}.text")
