"""Chat templates: messages to the one text that a model was trained to continue.

The template comes with the model's file, so it is data that happens to be a program: it runs in a
sandbox, within limits. Never tokenizes, and never changes what a message says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import InvalidRequest
from treadle.text.messages import cut_at_mark, joined, marked, present

if TYPE_CHECKING:
    from treadle.text.sandbox import CompiledTemplate


class ChatTemplate:
    """One template, compiled when first rendered; any thread may use it."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._compiled: CompiledTemplate | None = None
        self._takes_parts: bool | None = None

    def with_source(self, source: str) -> ChatTemplate:
        """Another template for the same model."""
        return ChatTemplate(source, bos_token=self._bos_token, eos_token=self._eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt; `kwargs` are further variables of the template.

        It opens an answer, unless the last message is to be continued: then it ends where that
        message's text does. A content in parts goes to the template as it is if the template reads
        parts, else as one text with a line break between parts. Raises InvalidRequest with the
        template's own message when it refuses the conversation.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        variables = {**kwargs, "tools": tools, "add_generation_prompt": add_generation_prompt}
        plain = present(messages)
        if any(isinstance(message.get("content"), list | tuple) for message in plain):
            plain = plain if self._reads_parts() else joined(plain)
        if not continue_final_message:
            return self._run(plain, variables)
        open_ended, text = marked(plain)
        return cut_at_mark(self._run(open_ended, variables), text)

    def _run(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled.render(
            {
                "bos_token": self._bos_token,
                "eos_token": self._eos_token,
                "documents": None,
                **variables,
                "messages": messages,
            }
        )

    def _reads_parts(self) -> bool:
        """Whether one part of text renders as that text does."""
        if self._takes_parts is None:
            text = "some text"
            try:
                whole, parts = (
                    self._run([{"role": "user", "content": content}], {"tools": None})
                    for content in (text, [{"type": "text", "text": text}])
                )
            except InvalidRequest:
                self._takes_parts = False
            else:
                self._takes_parts = whole == parts
        return self._takes_parts

    def _compile(self) -> CompiledTemplate:
        # Imported here: jinja2 is wanted only where somebody chats.
        from treadle.text.sandbox import CompiledTemplate

        return CompiledTemplate(self.source)
