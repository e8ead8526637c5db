"""What ARCHITECTURE.md promises: the import graph, the trace, and a lean install."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "treadle"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()

LIMIT_BYTES = 150 * 10**6
"""Of a default install, beside pip and setuptools."""


def folder_rules() -> dict[str, list[str]]:
    """Folder → what it may import, from the table."""
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|[^|]*\|([^|]*)\|$", TEXT, re.MULTILINE)
    return {name: [part.strip() for part in allowed.split(",")] for name, allowed in rows}


def imports(path: Path) -> Iterator[str]:
    """Modules of treadle that a file imports, below `treadle.`, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        yield from (n.removeprefix("treadle.") for n in names if n.startswith("treadle."))


def test_the_import_graph_is_the_table() -> None:
    rules = folder_rules()
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(rules) - {"errors"}, "the table lists the folders"
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if folder == "__init__":
            continue
        allowed = rules[folder]
        forbidden: set[str] = set()
        if allowed[0] == "all":
            continue
        if allowed[0].startswith("all but"):
            forbidden = {allowed[0].removeprefix("all but").strip(), *allowed[1:]}
            allowed = [name for name in rules if name not in forbidden]
        for module in imports(path):
            own = module.split(".")[0] == folder
            if not own and not any(module == a or module.startswith(a + ".") for a in allowed):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_torch_is_imported_in_one_folder() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "kernels/torch" not in path.as_posix():
            for node in ast.walk(ast.parse(path.read_text())):
                modules = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                assert not {m.split(".")[0] for m in modules} & {"torch", "transformers"}, path


@pytest.mark.parametrize("reference", sorted(set(re.findall(r"`(src/[\w/]+\.py:[\w.]+)`", TEXT))))
def test_every_path_and_symbol_exists(reference: str) -> None:
    file, symbol = reference.split(":")
    scope: ast.AST = ast.parse((ROOT / file).read_text())
    for name in symbol.split("."):
        body = getattr(scope, "body", [])
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == name]
        assert found, f"{reference}: no {name}"
        scope = found[0]


def test_at_most_ten_hops() -> None:
    section = TEXT.split("hop by hop")[1].split("##")[0]
    assert len(re.findall(r"^\d+\. `", section, re.MULTILINE)) <= 10


def test_the_loop_is_short_enough_to_read() -> None:
    tree = ast.parse((PACKAGE / "engine" / "loop.py").read_text())
    steps = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "step"]
    assert [step.end_lineno - step.lineno < 30 for step in steps if step.end_lineno] == [True]


def closure(name: str) -> set[str]:
    """A distribution and all it requires without extras, as installed here."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def test_a_default_install_is_lean() -> None:
    names = closure("treadle")
    assert not names & {"torch", "transformers", "gguf", "safetensors"}
    sizes = {
        name: sum(
            file.locate().stat().st_size  # type: ignore[attr-defined]
            for file in importlib.metadata.files(name) or []
            if file.locate().exists()  # type: ignore[attr-defined]
        )
        for name in names
    }
    # An editable install lists no sources of its own.
    sizes["treadle"] += sum(f.stat().st_size for f in PACKAGE.rglob("*") if f.is_file())
    total = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert total < LIMIT_BYTES, f"{total / 1e6:.0f} MB; largest: {largest}"
    print(f"default install: {total / 1e6:.0f} MB")


def test_answering_needs_neither_torch_nor_transformers(demo_gguf: Path) -> None:
    """With both forbidden, a prompt is answered; only the answer is on stdout."""
    program = f"""
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("torch", "transformers"), name
sys.meta_path.insert(0, Forbid())
from treadle.cli.main import main
sys.argv[1:] = ["generate", "--raw", "--max-tokens", "6", "--model", {str(demo_gguf)!r}]
sys.argv.append("1, 2, 3, 4, 5,")
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, " 6, 7,\n"), done.stderr
