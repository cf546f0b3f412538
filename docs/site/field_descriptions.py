"""Shows the description of every setting in the API reference, as `ipfl run --show-config` does.

The settings say what they mean in `Field(description="…")`. The reference reads the source without importing
it and knows docstrings only, so the description becomes the docstring of its field.
"""

from __future__ import annotations

import ast
from typing import Any

from griffe import Attribute, Docstring, Extension


class FieldDescriptions(Extension):
    """Turns `Field(description="…")` into a docstring."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Called for every attribute that was read."""
        if attr.docstring or not str(attr.value).startswith("Field("):
            return
        call = ast.parse(str(attr.value), mode="eval").body
        assert isinstance(call, ast.Call)
        for keyword in call.keywords:
            if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                attr.docstring = Docstring(str(keyword.value.value), parent=attr)
        default = call.args[0] if call.args else None
        attr.value = ast.unparse(default) if default is not None else None
