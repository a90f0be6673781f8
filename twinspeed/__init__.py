"""The shared vocabulary of every stage, and the command line. Imports no stage."""

__version__ = "0.1.0"
