"""Writer of strict JSON schemas for all kinds of Kubernetes: `python deploy/tools/schemas.py SWAGGER FOLDER`.

The files have the names that kubeconform expects. In a strict schema an unknown field is an error. A cluster would
ignore it, although it is usually a misspelt one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "#/definitions/"
Schema = dict[str, Any]


def main(swagger: Path, folder: Path) -> None:
    """Write a file for each kind. Definitions that are only parts of others have none."""
    definitions = {name: strict(schema) for name, schema in json.loads(swagger.read_bytes())["definitions"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            text = json.dumps({"$ref": PREFIX + name, "definitions": reachable(definitions, name)})
            (folder / file_name(kind)).write_text(text, encoding="utf-8")


def strict(schema: Schema) -> Schema:
    """Forbid unknown properties, and allow both types for ``int-or-string``."""
    if schema.get("format") == "int-or-string":
        return {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    return schema | {"additionalProperties": False} if "properties" in schema else schema


def reachable(definitions: dict[str, Schema], name: str) -> dict[str, Schema]:
    """Return a definition and all definitions that it refers to, directly or not."""
    found: dict[str, Schema] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = definitions[name]
            waiting += references(definitions[name])
    return found


def references(node: Any) -> Iterator[str]:
    """Yield the names of the definitions to which a schema refers directly."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(PREFIX)
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def file_name(kind: dict[str, str]) -> str:
    """Return the file name of a kind by kubeconform's template ``{{.ResourceKind}}{{.KindSuffix}}``."""
    group = kind["group"].split(".")[0]
    return "-".join(filter(None, [kind["kind"].lower(), group, kind["version"]])) + ".json"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
