"""The table of docs/models.md: which architectures load from where, which tiny models show it, and
which weight types GGUF files may have.

Made from the lists that the tests go through. `python -m tests.models.table` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from tests.gguf_types import MIXED
from tests.tiny_gguf import NOT_IN_GGUF, gguf_architecture
from tests.tiny_models import FIRST_OF_KIND, MODELS, model_type
from treadle.kernels.ops import WeightType
from treadle.models.families import CONFIG_FAMILIES

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- table: python -m tests.models.table -->\n", "<!-- end of table -->\n"

_HEAD = (
    "| `model_type` | folder: f32 | folder: f16, bf16 | GGUF architecture | GGUF: f32, f16, q8_0"
    " | GGUF: every type | GGUF: mixed |",
    "|---|---|---|---|---|---|---|",
)


def table() -> str:
    lines = [*_HEAD]
    for kind in CONFIG_FAMILIES:
        names = [name for name in MODELS if model_type(name) == kind]
        cells = (
            f"`{kind}`",
            _list(names),
            _list([name for name in names if name in FIRST_OF_KIND]),
            f"`{gguf_architecture(kind)}`",
            _list([name for name in names if name not in NOT_IN_GGUF]),
            _list([name for name in names if name in FIRST_OF_KIND]),
            _list([types for name, types in MIXED if name in names]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    types = f"Every type: {', '.join(WeightType)}."
    return "\n".join([*lines, "", types]) + "\n"


def with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + table() + END + after


def _list(names: list[str]) -> str:
    return ", ".join(names) or "–"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
