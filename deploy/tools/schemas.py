"""`python deploy/tools/schemas.py SWAGGER FOLDER`: write a strict JSON schema for each kind that Kubernetes knows.

The names are those by which kubeconform looks for them. Strict means that a field nobody knows is an error, as a
misspelt one would be ignored by a cluster.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "#/definitions/"
Schema = dict[str, Any]


def main(swagger: Path, folder: Path) -> None:
    """Write one file for each kind; those that are only part of another have none."""
    definitions = {name: strict(schema) for name, schema in json.loads(swagger.read_bytes())["definitions"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            text = json.dumps({"$ref": PREFIX + name, "definitions": reachable(definitions, name)})
            (folder / file_name(kind)).write_text(text, encoding="utf-8")


def strict(schema: Schema) -> Schema:
    """Forbid further properties, and allow both of what ``int-or-string`` stands for."""
    if schema.get("format") == "int-or-string":
        return {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    return schema | {"additionalProperties": False} if "properties" in schema else schema


def reachable(definitions: dict[str, Schema], name: str) -> dict[str, Schema]:
    """Return the definitions that one needs, itself included."""
    found: dict[str, Schema] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = definitions[name]
            waiting += references(definitions[name])
    return found


def references(node: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(PREFIX)
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def file_name(kind: dict[str, str]) -> str:
    """Return the name that kubeconform makes of ``{{.ResourceKind}}{{.KindSuffix}}``."""
    group = kind["group"].split(".")[0]
    return "-".join(filter(None, [kind["kind"].lower(), group, kind["version"]])) + ".json"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
