"""Claims of docstrings and documents about modules. Modules that call themselves pure are under the contract that keeps
them so, the page of the architecture draws the contract of the layers, and each folder names its page.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
APPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
CONTRACT = "The core does no I/O and knows no framework"
# "Pure." and "The module is pure.", but not a remark on other modules: "so that the rules can be pure".
DECLARED_PURE = re.compile(r"\bPure\b|\b(?:is|and) pure\b")


def modules() -> Iterator[tuple[str, str]]:
    """Yield our modules that contain the word "pure", each with its docstring."""
    for path in (path for app in APPS for path in (ROOT / app).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if ".tests" not in name and DECLARED_PURE.search(text := path.read_text()):
            yield name, ast.get_docstring(ast.parse(text)) or ""


def contracted() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [sources] = [each["source_modules"] for each in contracts if each["name"] == CONTRACT]
    return list(sources)


def test_every_module_that_is_declared_pure_is_under_the_contract() -> None:
    pure = [name for name, shows in modules() if DECLARED_PURE.search(shows)]
    kept = contracted()
    assert len(pure) > 30
    assert [name for name in pure if not any(f"{name}.".startswith(f"{each}.") for each in kept)] == []


def test_verdicts_and_rules_of_every_app_are_declared_pure() -> None:
    shown = {name for name, shows in modules() if DECLARED_PURE.search(shows)}
    assert {
        "registrations.rules",
        "notifications.rules.policy",
        "xmpp_bridge.rules.decisions",
        "xmpp_bridge.rules.limits",
    } <= shown


def test_the_page_of_the_architecture_draws_the_layers_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each["name"] == "Messages flow one way"]
    [drawing] = re.findall(
        r"^```\n(embedded .*?)```", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert [re.split(r"\s{2,}", line)[0] for line in drawing.splitlines()] == layers


def test_each_folder_of_ours_names_its_page() -> None:
    """Check the root folder of each app and its direct packages."""
    unnamed = []
    for app in APPS:
        for folder in (ROOT / app, *sorted(path.parent for path in (ROOT / app).glob("*/__init__.py"))):
            if folder.name in {"tests", "migrations", "management"}:
                continue
            shown = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
            pages = re.findall(r"\b(?:docs/[\w/-]+|README)\.md", shown)
            unnamed += [] if pages and all((ROOT / page).exists() for page in pages) else [folder]
    assert unnamed == []
