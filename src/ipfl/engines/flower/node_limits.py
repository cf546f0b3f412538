"""What the operator of a node insists on: runs that protect its data less are refused.

The limits are part of the node's own config (`node.toml`), which the server cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ipfl.config.sections import Section
from ipfl.config.train_section import PrivacyConfig
from ipfl.errors import InputError

MAX_DELTA = 1e-5
"""With a larger chance that ε does not hold, a limit of ε would mean nothing."""


class NodeLimits(Section):
    """The least protection with which a node takes part in a run."""

    least_noise: float = Field(0.0, ge=0, description="refuse runs with less privacy.noise")
    most_epsilon: float | None = Field(
        None,
        gt=0,
        description="refuse runs whose privacy.epsilon is larger or not set, or whose delta is above 1e-5",
    )

    def limits(self) -> dict[str, str | float]:
        """Those that are set, by name: as a node is started with them."""
        return self.model_dump(include=set(NodeLimits.model_fields), exclude_none=True)

    @classmethod
    def read(cls, node_config: Mapping[str, Any]) -> NodeLimits:
        """The limits that a node was started with."""
        return cls.of({name: node_config[name] for name in cls.model_fields if name in node_config})

    def check(self, privacy: PrivacyConfig) -> None:
        """Accepts the settings of a run.

        Raises:
            InputError: They protect less than the operator of this node wants.
        """
        limit, asked = self.most_epsilon, privacy.epsilon
        if privacy.noise < self.least_noise:
            why = f"privacy.noise = {privacy.noise:g}, this node wants {self.least_noise:g} or more"
        elif limit is not None and (asked is None or asked > limit or privacy.delta > MAX_DELTA):
            said = "no privacy.epsilon" if asked is None else f"privacy.epsilon = {asked:g}"
            why = f"{said} at delta = {privacy.delta:g}, this node wants {limit:g} or less"
            why += f" at {MAX_DELTA:g} or less"
        else:
            return
        raise InputError(f"the run protects too little: {why} (node.toml)")
