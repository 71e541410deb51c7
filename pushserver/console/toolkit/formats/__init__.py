"""Formats of the dates that Django itself renders, found by the setting `FORMAT_MODULE_PATH`."""
