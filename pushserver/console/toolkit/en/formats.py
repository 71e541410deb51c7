"""Date and time formats equal to those of `toolkit.times`, so that all times on a page look the same."""

DATE_FORMAT = SHORT_DATE_FORMAT = "Y-m-d"
TIME_FORMAT = r"H:i:s \U\T\C"
DATETIME_FORMAT = SHORT_DATETIME_FORMAT = r"Y-m-d H:i:s \U\T\C"
