"""Diagnosis: what a server's log says about its failure, from a catalogue of known signatures."""

from orchestrator.diagnose.catalogue import Effect, Signature, load_catalogue
from orchestrator.diagnose.match import diagnose
from orchestrator.diagnose.report import Match

__all__ = ["Effect", "Match", "Signature", "diagnose", "load_catalogue"]
