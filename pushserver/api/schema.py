"""The schema of the API, which anybody may read. It is the same for all, so each process makes it once."""

from functools import cache

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer


@cache
def _as_yaml() -> bytes:
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # it has no types
    return bytes(OpenApiYamlRenderer().render(schema))  # type: ignore[no-untyped-call]


@require_safe
@cache_control(public=True, max_age=3600)
def show_schema(_request: HttpRequest) -> HttpResponse:
    """Show the schema of the API as YAML."""
    return HttpResponse(_as_yaml(), content_type=f"{OpenApiYamlRenderer.media_type}; charset=utf-8")
