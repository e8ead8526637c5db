"""Chat templates: messages to the one text that a model was trained to continue.

The template comes with the model's file, so it is data that happens to be a program: it runs in a
sandbox, within limits. Never tokenizes, and never changes what a message says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import InvalidRequest

if TYPE_CHECKING:
    from treadle.text.sandbox import CompiledTemplate


class ChatTemplate:
    """One template, compiled when first rendered; any thread may use it."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._compiled: CompiledTemplate | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt; `kwargs` are further variables of the template.

        Raises InvalidRequest with the template's own message when it refuses the conversation.
        """
        if self._compiled is None:
            self._compiled = self._compile()
        variables = {
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
            "documents": None,
            **kwargs,
            "messages": [_present(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._compiled.render(variables)

    def _compile(self) -> CompiledTemplate:
        # Imported here: jinja2 is wanted only where somebody chats.
        from treadle.text.sandbox import CompiledTemplate

        return CompiledTemplate(self.source)


def _present(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without absent fields: templates ask whether a key is there, not for its None."""
    if not isinstance(message, Mapping):
        raise InvalidRequest("each message must be a mapping", param="messages")
    return {key: value for key, value in message.items() if value is not None}
