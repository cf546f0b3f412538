"""A bound on what a request parses into, found without parsing it.

A field of two bytes can become an object of a hundred: 16 MB of them, half a gigabyte, before the SuperLink
has asked who sends it. So the front counts the fields of a body, at every depth, and stops at the first one
too many. What it counts has no objects yet: a count costs no memory.
"""

from __future__ import annotations

from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a field is written (protobuf's wire types); proto3 has no others."""
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
NOT_PACKED = (9, 10, 11, 12)
"""Types of fields that are no numbers (`FieldDescriptor.TYPE_STRING` to `TYPE_BYTES`): each value is written
as a field of its own."""


class TooManyFieldsError(ValueError):
    """A body has more fields than allowed."""


def count_fields(body: bytes, kind: Any, most: int) -> int:
    """Number of fields of a message, in all its parts; each byte of packed numbers counts as one.

    Args:
        body: The message, as it came.
        kind: What it is to be parsed as, a descriptor of protobuf.
        most: How many fields it may have; nothing more is read after that.

    Raises:
        TooManyFieldsError: It has more.
        ValueError: It is not such a message.
    """
    fields, parts = 0, [(0, len(body), kind)]
    while parts:
        position, end, kind = parts.pop()
        while position < end:
            tag, position = _varint(body, position)
            written, field = tag & 7, kind.fields_by_number.get(tag >> 3)
            fields += 1
            if written == VARINT:
                _, position = _varint(body, position)
            elif written == BYTES:
                length, position = _varint(body, position)
                if field is not None and field.message_type is not None:
                    parts.append((position, min(position + length, end), field.message_type))
                elif field is not None and field.type not in NOT_PACKED:
                    fields += length
                position += length
            elif written in FIXED_BYTES:
                position += FIXED_BYTES[written]
            else:
                raise ValueError("not a message")
            if position > end:
                raise ValueError("not a message")
            if fields > most:
                raise TooManyFieldsError(f"a message of more than {most} fields")
    return fields


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits per byte, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(body):
            break
        byte = body[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
    raise ValueError("not a message")
