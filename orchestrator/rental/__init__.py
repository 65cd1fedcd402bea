"""By which SkyPilot and dstack start the very same `deploy up` on a machine that they rent. Pure."""

from orchestrator.rental.brokers import BROKERS
from orchestrator.rental.rental import Rental

__all__ = ["BROKERS", "Rental"]
