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
        set_ones = {name: getattr(self, name) for name in NodeLimits.model_fields}
        return {name: value for name, value in set_ones.items() if value is not None}

    @classmethod
    def read(cls, node_config: Mapping[str, Any]) -> NodeLimits:
        """The limits that a node was started with."""
        return cls.of({name: node_config[name] for name in cls.model_fields if name in node_config})

    def check(self, privacy: PrivacyConfig) -> None:
        """Accepts the settings of a run.

        Raises:
            InputError: They protect less than the operator of this node wants.
        """
        for is_less, text in (
            (
                privacy.noise < self.least_noise,
                f"privacy.noise = {privacy.noise:g}, this node wants {self.least_noise:g} or more",
            ),
            (self._exceeds_budget(privacy), self._budget_text(privacy)),
        ):
            if is_less:
                raise InputError(f"the run protects too little: {text} (node.toml)")

    def _exceeds_budget(self, privacy: PrivacyConfig) -> bool:
        if self.most_epsilon is None:
            return False
        return privacy.epsilon is None or privacy.epsilon > self.most_epsilon or privacy.delta > MAX_DELTA

    def _budget_text(self, privacy: PrivacyConfig) -> str:
        said = "no privacy.epsilon" if privacy.epsilon is None else f"privacy.epsilon = {privacy.epsilon:g}"
        return (
            f"{said} at delta = {privacy.delta:g}, this node wants {self.most_epsilon or 0:g} or less "
            f"at {MAX_DELTA:g} or less"
        )
