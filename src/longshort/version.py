"""The version, by itself: what asks for it need not import the package's face."""

__version__ = "0.1.0"
