"""A ClientApp whose client misbehaves in training: `faults.json` in its memory says when and how.

It is copied into the app folders of a test's federation, of the server and of the nodes.
"""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from ipfl.engines.flower.messages import unpack
from ipfl.engines.flower.node_app import NodeApp


class Misbehaving(NodeApp):
    def __call__(self, message: Message, context: Context) -> Message:
        fault = self._fault(message, context)
        if fault == "hang":
            (self._memory(context) / "hanging").touch()
            time.sleep(600)
        if fault == "wait":
            while not (self._memory(context) / "go on").exists():
                time.sleep(0.1)
        if fault == "late":
            time.sleep(float((self._memory(context) / "late").read_text()))
        if fault == "invalid":
            return Message(RecordDict({"x": ConfigRecord({"y": "z"})}), reply_to=message)
        reply = super().__call__(message, context)
        if fault == "claim":  # a reply in the name of another client
            head = json.loads(str(reply.content["head"]["json"]))
            content = {"head": ConfigRecord({"json": json.dumps(head | {"client": 1})})}
            arrays = reply.content["arrays"]
            assert isinstance(arrays, ArrayRecord)
            return Message(RecordDict(content | {"arrays": arrays}), reply_to=message)
        return reply

    def _reply(self, message: Message, context: Context) -> RecordDict:
        if self._fault(message, context) == "raise":
            raise ZeroDivisionError("a bug in the client's code")
        return super()._reply(message, context)

    def _fault(self, message: Message, context: Context) -> str | None:
        if message.metadata.message_type != "train":
            return None
        try:
            faults = json.loads((self._memory(context) / "faults.json").read_text())
        except FileNotFoundError:
            return None
        return faults.get(str(unpack(message.content)[0]["round"]))

    def _memory(self, context: Context) -> Path:
        return Path(str(context.node_config["memory"]))


app = Misbehaving()
