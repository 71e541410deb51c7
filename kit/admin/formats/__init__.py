"""How dates are written where Django does it, see `FORMAT_MODULE_PATH`."""
