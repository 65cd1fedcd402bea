"""The workflows: each reads as a sentence.

Shows nothing here: its modules are imported by name, the module `up` for `deploy up`.
"""
