"""What an operator does about a code that many attempts fail with: one advice for each code. Pure.

Only what comes from Apple or Google may be waited for. What our own gorush says, or does not say, is ours to mend.
"""

ONLY_WAIT = (
    "This is an outage or a limit of Apple or Google: look at their status pages; nothing else helps but waiting."
)
PROVIDER = "gorush did not get through to Apple or Google: look at its log, its proxy and its firewall."
GORUSH = "Our own gorush: is it running, and does it reach Apple and Google? Its page says whether it answers."
SLOW = "Our own gorush is slow or its queue is full: raise its `worker_num`, and see whether Apple and Google hang."
STOPPED = "Something stops gorush or cuts its connections: look at its log, its memory and at proxies before it."
FOREIGN = "What answers at GORUSH_URL is not gorush as we know it: correct GORUSH_URL, or what stands before it."
KEYS = "Mend the keys that gorush has for Apple: key, team and certificate, and the environment they are made for."
TOPIC = "Apple does not take this app topic from us: compare the app's topic with the key that gorush has."
GOOGLE = "Mend the service account that gorush has for Google: its file, its permissions and its project."
CERTIFICATE = "Renew the certificate of gorush, or gorush's trust in those of Apple and Google."
WORKER = "Workers die: the system's log says what kills them, often memory."
DROPPED = "gorush takes no pushes of this platform: set `ios.enabled` and `android.enabled`."
RULE = "Give these errors a rule. Until then they count as transient."
FAULT = "A fault of this server: the log of the workers has it. Report it."
ABSENT = "These routes name a gateway that is not part of this server any more."

_CODES = {
    ONLY_WAIT: """IdleTimeout InternalServerError ServiceUnavailable Shutdown TooManyProviderTokenUpdates
        TooManyRequests http_429 http_5xx internal quota_exceeded unavailable""",
    PROVIDER: "connection_lost cannot_fetch_token",
    GORUSH: "unreachable",
    SLOW: "timeout queue_full",
    STOPPED: "cut_off cancelled empty",
    FOREIGN: "not_http not_json not_understood http_404 http_4xx",
    KEYS: """BadCertificate BadCertificateEnvironment BadEnvironmentKeyIdInToken ExpiredProviderToken Forbidden
        InvalidProviderToken MissingProviderToken UnrelatedKeyIdInToken""",
    TOPIC: "BadTopic MissingTopic TopicDisallowed",
    GOOGLE: "permission service_account third_party_auth",
    CERTIFICATE: "tls",
    WORKER: "worker_lost",
    DROPPED: "dropped",
    RULE: "unknown",
    FAULT: "gateway_failed",
    ABSENT: "no_gateway",
}
ADVICE = {code: advice for advice, codes in _CODES.items() for code in codes.split()}


def advice(code: str) -> str:
    """Return what to do about a code, or nothing. A status of gorush itself (`http_502`) is about gorush, not Apple."""
    if code not in ADVICE and code.startswith("http_"):
        return STOPPED if code.startswith("http_5") else FOREIGN
    return ADVICE.get(code, "")
