"""The SQL of this app, by name. The ORM does what is not here."""

from datetime import timedelta
from typing import LiteralString

from kit.db.base import stored, table
from notifications.models import OpenNotification
from notifications.queues.ending import WAITS
from registrations.models import Route
from registrations.statements import DRAWN, MAY_GO
from xmpp_bridge.models import Device

STORED_DEVICES: LiteralString = stored("xmpp_bridge_device")
# A device that a new one may replace, by the rules of `registrations.quotas`.
DRAW_DEVICES: LiteralString = f"""
    SELECT device.id FROM ({DRAWN}) AS drawn
    JOIN xmpp_bridge_device AS device ON device.route_id = drawn.id
    JOIN registrations_route AS route ON route.id = drawn.id
    WHERE device.state = '{Device.State.ACTIVE}' AND {MAY_GO}
    ORDER BY place DESC NULLS FIRST LIMIT %(number)s FOR UPDATE OF device, route SKIP LOCKED
"""
# A wake-up that waits for its device serves later wake-ups, too. A background wake-up serves none that is to be shown.
# An ambiguous one serves none: a late result may say that it reached the device, before the later push came.
FIND_DEVICES: LiteralString = f"""
    SELECT device.id, device.state = '{Device.State.ACTIVE}' AND route.state = '{Route.State.ACTIVE}'
        AND NOT app.is_retired, device.domain,
           device.announced_from, device.pushed_at > %(today)s,
           app.style, app.text, app.sound, app.calls_as_alerts, app.passes_texts, app.refuses_texts,
           route.id, route.generation, route.gateway, route.token_type, route.app_topic, route.is_proven,
           route.address_digest, wake.waiting, wake.shown, wake.background
    FROM xmpp_bridge_device AS device
    JOIN xmpp_bridge_app AS app ON app.id = device.app_id
    LEFT JOIN registrations_route AS route ON route.id = device.route_id
    LEFT JOIN LATERAL (
        SELECT count(*) AS waiting,
               max(n.id) FILTER (WHERE n.grade NOT IN ('low', 'voip') AND n.is_wake) AS shown,
               max(n.id) FILTER (WHERE n.grade = 'low' AND n.is_wake) AS background
        FROM (
            SELECT id, grade, message IS NULL AND NOT payload_dropped
                AND state <> '{OpenNotification.State.AMBIGUOUS}' AND expires_at > %(still_at)s AS is_wake
            FROM {table(OpenNotification)}
            WHERE route_id = route.id AND {WAITS} AND grade <> ''
        ) AS n
    ) AS wake ON TRUE
    WHERE device.id = ANY (%(ids)b::uuid[])
"""
NOTE_USE = """
    WITH free AS (
        SELECT id FROM xmpp_bridge_device WHERE id = ANY (%(ids)b::uuid[])
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE xmpp_bridge_device AS device SET pushed_at = %(now)s, announced_from = item.announced_from
    FROM unnest(%(ids)b::uuid[], %(froms)b::text[]) AS item (id, announced_from) JOIN free USING (id)
    WHERE device.id = item.id
"""
# Both queries of ends have the columns of `devices.Ended`.
DISABLED_ROUTES: LiteralString = f"""
    SELECT route.id, device.id, device.domain, device.announced_from, device.key_name
    FROM registrations_route AS route LEFT JOIN xmpp_bridge_device AS device ON device.route_id = route.id
    WHERE route.state = '{Route.State.DISABLED}' AND route.is_end_awaited
    ORDER BY route.id LIMIT %(limit)s FOR NO KEY UPDATE OF route SKIP LOCKED
"""
ENDED_DEVICES: LiteralString = f"""
    SELECT NULL, id, domain, announced_from, key_name FROM xmpp_bridge_device
    WHERE state <> '{Device.State.ACTIVE}' AND announced_from IS NOT NULL
    ORDER BY ended_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""
# A stanza that the component did not send within this time is not sent any more.
_KEPT = timedelta(minutes=2)
TAKE_CANARY_STANZAS: LiteralString = f"""
    UPDATE xmpp_bridge_canarystanza SET sent_at = clock_timestamp()
    WHERE sent_at IS NULL AND queued_at > clock_timestamp() - interval '{_KEPT}' RETURNING id, text
"""
