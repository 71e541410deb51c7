"""Faults of the whole gorush, as opposed to those of one device token (`outcomes.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields


class InvalidFaultError(ValueError):
    """A name that is no fault, or a value of the wrong type."""


@dataclass(slots=True)
class Faults:
    """Faults that strike before anything is delivered, and stay until they are set again."""

    down: bool = False  # every connection but those to /dev/ is cut
    delay_ms: int = 0  # every push waits this long
    refuses_keys: bool = False  # Apple and Google refuse every push for the credentials that gorush has
    status: int = 0  # every push is answered with this status and an empty body

    def update(self, switches: Mapping[str, object]) -> None:
        """Set the named faults. Raises InvalidFaultError before anything changed."""
        types = {field.name: field.type for field in fields(self)}
        for name, value in switches.items():
            if name not in types or type(value) is not types[name]:
                raise InvalidFaultError(f"not a fault or not its type: {name[:40]}")
        for name, value in switches.items():
            setattr(self, name, value)
