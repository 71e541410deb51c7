from django.apps import AppConfig


class BucketsConfig(AppConfig):
    name = "kit.buckets"
