"""Go's reading of a device token that gorush writes unescaped into the URL of a request to Apple. Pure."""

import json
import re
from urllib.parse import quote

APPLE_URL = "https://api.sandbox.push.apple.com/3/device/"
GOOGLE_URL = "https://fcm.googleapis.com/v1/projects/status-im/messages:send"
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)


def unusable(token: str) -> str:
    """Return the error of a token that makes no URL, so that nothing is sent, or an empty text if it makes one."""
    quoted = json.dumps(APPLE_URL + token, ensure_ascii=False)
    if CONTROL_CHARACTER.search(token):
        return f"parse {quoted}: net/url: invalid control character in URL"
    if bad := BAD_ESCAPE.search(token):
        return f'parse {quoted}: invalid URL escape "{bad[0]}"'
    return ""


def as_shown(token: str) -> str:
    """Return the token as transport errors show it, percent-encoded where Go requires it."""
    return quote(token, safe="$&+,/:;=@!'()*~?#%")
