from django.urls import path

from pushserver.console.reports import pages

app_name = "reports"
urlpatterns = [
    path("", pages.overview, name="overview"),
    path("run/", pages.request_run, name="run"),
    path("<slug:slug>/", pages.report, name="report"),
    path("<slug:slug>.csv", pages.report_csv, name="csv"),
]
