"""The workflows: each reads as a sentence."""
