"""/tokenize, /detokenize and /apply-template against the tokenizer itself."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.fake_engine import WINDOW
from tests.server.served import DEADLINE_S, Served
from treadle.text.load import ModelText

CHAT = [{"role": "user", "content": "Hello"}]


def tokenize(server: Served, path: str = "/tokenize", **body: Any) -> Any:
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize("name", ["prompt", "text", "content"])
def test_texts(server: Served, text: ModelText, path: str, name: str) -> None:
    prompt = "Once upon 😀 a time<|im_end|>"
    ids = text.tokenizer.encode(prompt, add_special=name != "content")
    assert tokenize(server, path, **{name: prompt}) == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": None,
    }
    found = tokenize(server, path, **{name: "Once upon"}, return_token_strs=True)
    assert found["token_strs"] == ["Once", "Ġupon"]


def test_chats(server: Served, text: ModelText) -> None:
    template = text.require_template()
    for opened in (True, False):
        prompt = template.render(CHAT, add_generation_prompt=opened)
        ids = text.tokenizer.encode(prompt, add_special=False)
        body: dict[str, Any] = {"messages": CHAT, "add_generation_prompt": opened}
        assert tokenize(server, **body)["tokens"] == ids
        assert tokenize(server, "/apply-template", **body) == {"prompt": prompt}
    usage = server.post("/v1/chat/completions", messages=CHAT, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == tokenize(server, messages=CHAT)["count"]


def test_back_to_text(server: Served, text: ModelText) -> None:
    prompt = "Once upon 😀 a time<|im_end|>"
    ids = text.tokenizer.encode(prompt)
    for path in ("/detokenize", "/v1/detokenize"):
        found = tokenize(server, path, tokens=ids)
        assert found == dict.fromkeys(("prompt", "text", "content"), prompt)
        found = tokenize(server, path, tokens=ids, skip_special_tokens=True)
        assert found["text"] == prompt.removesuffix("<|im_end|>")
    assert tokenize(server, "/detokenize", tokens=[])["prompt"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "content"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"content": "a", "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/tokenize", {"prompt": "a " * 10**5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [49152]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": CHAT, "chat_template": "x"}, "chat_template"),
        (
            "/apply-template",
            {"messages": CHAT, "chat_template_kwargs": {"self": 1}},
            "chat_template_kwargs",
        ),
    ],
)
def test_refusals(server: Served, path: str, body: dict[str, Any], param: str) -> None:
    response = server.post(path, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_other_models(server: Served) -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert server.post(path, model="other", **body).status_code == 404
        assert server.post(path, model="fake", **body).status_code == 200


def test_what_clients_must_know_to_prepare_prompts(server: Served, text: ModelText) -> None:
    info = httpx.get(f"{server.url}/tokenizer_info", timeout=DEADLINE_S).json()
    assert text.template is not None
    assert info["chat_template"] == text.template.source
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert info["add_bos_token"] is text.tokenizer.add_bos
    assert (info["vocab_size"], info["model_max_length"]) == (text.tokenizer.vocab_size, WINDOW)
