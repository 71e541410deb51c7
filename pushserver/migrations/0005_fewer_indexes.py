import django.db.models.deletion
from django.db import migrations, models

# Indexes without a reader, and the second ones for searches by beginning, which new installations do not have (see
# `kit.db.base.SchemaEditor`).
UNUSED = (
    *("incident_indicator", "incident_ended", "pushserver_incident_began_at_cd495ec9"),
    *("pushserver_alert_incident_id_23b5bd9b", "pushserver_serverstart_started_at_6bee7a71"),
    *("auth_group_name_a6ea08ec_like", "auth_user_username_6821ab7c_like", "django_session_session_key_c0390e0f_like"),
    *("axes_accessattempt_user_agent_ad89678b_like", "axes_accessattempt_username_3f2d4ca0_like"),
    *("axes_accessfailurelog_user_agent_ea145dda_like", "axes_accessfailurelog_username_a8b7e8a4_like"),
    *("axes_accesslog_user_agent_0e659004_like", "axes_accesslog_username_df93064b_like"),
    *("batches_stepmark_step_de153d88_like", "expiry_massexpiry_name_c8e1cf3d_like"),
    *("notifications_gatewayerrorrule_seed_key_64083656_like", "pushserver_alertlevel_kind_b0c111b9_like"),
    *("registrations_topickey_name_e67e73e5_like", "spark_reports_pseudonymseed_period_1e56271a_like"),
    *("xmpp_bridge_app_slug_83d8d261_like", "xmpp_bridge_canarystanza_id_764fa3cd_like"),
)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pushserver", "0004_keys_of_a_start")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex("incident", "incident_indicator"),
                migrations.RemoveIndex("incident", "incident_ended"),
                migrations.AlterField("incident", "began_at", models.DateTimeField()),
                migrations.AlterField("serverstart", "started_at", models.DateTimeField()),
                migrations.AlterField(
                    "alert",
                    "incident",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="pushserver.incident",
                    ),
                ),
            ],
            database_operations=[migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}") for name in UNUSED],
        ),
    ]
