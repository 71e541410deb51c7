from django.template import Context, Template

from kit.admin.commands import with_code


def test_commands_between_backticks_are_shown_as_code() -> None:
    assert with_code("Run `make run`, or `a < b`.") == "Run <code>make run</code>, or <code>a &lt; b</code>."


def test_text_is_escaped_once() -> None:
    markup = Template("{% load console %}{{ text|with_code }}").render(Context({"text": "<b> & `<i>`"}))

    assert markup == "&lt;b&gt; &amp; <code>&lt;i&gt;</code>"
