"""The page that shows the OpenAPI document: plain HTML made here, no script, nothing from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .35rem 0; }
summary b { display: inline-block; min-width: 4.5rem; font: 600 .8rem ui-monospace, monospace; }
details { border-bottom: 1px solid #8884; }
details > :not(summary) { margin-left: 4.5rem; }
table { border-collapse: collapse; margin-bottom: 1rem; }
td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0; }
code { font: .85rem ui-monospace, monospace; }
"""
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def docs_page(document: dict[str, Any]) -> str:
    """Return the page."""
    info = document["info"]
    operations = "".join(
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])} "
        '<a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Routes</h2>{operations}<h2>Schemas</h2>{schemas}</html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = []
    body = operation.get("requestBody", {}).get("content", {})
    rows += [("takes", f"{escape(kind)}: {_type(content['schema'])}") for kind, content in body.items()]
    for status, answer in operation["responses"].items():
        what = "gives" if int(status) < 300 else status
        rows += [(what, f"{escape(kind)}: {_type(content['schema'])}") for kind, content in answer["content"].items()]
    table = "".join(f"<tr><th>{name}<td>{value}" for name, value in rows)
    more = f"<p>{escape(operation['description'])}</p>" if "description" in operation else ""
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{head}</summary>{more}<table>{table}</table></details>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{_type(kind)}<td>{'required' if field in required else ''}"
        for field, kind in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", "")).replace("\n", "<br>")
    head = f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    return f"{head}<p>{about}</p><table>{rows}</table></details>"


def _type(schema: dict[str, Any]) -> str:
    """Write a schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"])) + _range(schema)
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    return escape(str(kind)) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return f", {low:g} to {high:g}" if low is not None and high is not None else ""
