{{/* The commands are those of compose.yaml; a test compares them. */}}
{{- define "push-server.command" -}}
{{- $commands := dict
  "migrate" "python manage.py migrate --no-input"
  "web" ""
  "bridge" "python manage.py run_waku_bridge"
  "xmpp" "python manage.py run_xmpp_bridge"
  "batches" "celery --app=pushserver.worker --quiet worker --hostname=batches@%h --queues=batches --pool=prefork --without-gossip --without-mingle --heartbeat-interval=5"
  "tasks" "celery --app=pushserver.worker --quiet worker --hostname=tasks@%h --queues=maintenance,keys,canary --pool=threads --concurrency=8 --without-gossip --without-mingle --heartbeat-interval=5"
  "reports" "celery --app=pushserver.worker --quiet worker --hostname=reports@%h --queues=reports --pool=threads --concurrency=1 --without-gossip --without-mingle --heartbeat-interval=5" -}}
{{- get $commands . -}}
{{- end -}}

{{- define "push-server.name" -}}
{{- printf "%s-%s" .root.Release.Name .process | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "push-server.selector" -}}
app.kubernetes.io/name: push-server
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .process }}
{{- end -}}

{{- define "push-server.labels" -}}
{{ include "push-server.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Reports are made, and their lake is in no object store: it needs a volume that stays. */}}
{{- define "push-server.lake-is-volume" -}}
{{- $remote := regexMatch "^(s3|gs|hdfs|abfs)" (.Values.settings.REPORTS_LAKE | default "") -}}
{{- if and (dig "enabled" true .Values.processes.reports) (not $remote) }}yes{{ end -}}
{{- end -}}

{{/* The secrets of a process: those of secret.keys that it needs. A test compares this with docs/settings.md. */}}
{{- define "push-server.secrets" -}}
{{- $users := dict
  "database_url" "migrate web bridge xmpp batches tasks reports"
  "redis_url" "migrate web bridge xmpp batches tasks reports"
  "field_encryption_keys" "migrate web xmpp batches tasks reports"
  "server_private_key" "web bridge xmpp batches tasks"
  "other_server_private_keys" "web bridge xmpp batches tasks"
  "metrics_token" "web bridge xmpp batches tasks reports"
  "otel_exporter_otlp_headers" "web bridge xmpp batches tasks reports"
  "alerts_to" "web tasks"
  "email_password" "web tasks"
  "canary_device_token" "web tasks"
  "gorush_hook_secret" "web tasks"
  "secret_key" "web"
  "xmpp_component_secret" "xmpp"
  "aws_shared_credentials" "reports" -}}
{{- $own := list -}}
{{- range $key := .root.Values.secret.keys -}}
{{- $processes := get $users $key | required (printf "secret.keys: %s is no secret of docs/settings.md" $key) -}}
{{- if has $.process (splitList " " $processes) }}{{ $own = append $own $key }}{{ end -}}
{{- end -}}
{{- join " " $own -}}
{{- end -}}

{{/* What the container of every process has in common. */}}
{{- define "push-server.container" -}}
{{- $image := ternary .root.Values.image.reports .root.Values.image.server (eq .process "reports") -}}
name: {{ .process }}
image: {{ printf "%s:%s" $image (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- with include "push-server.command" .process }}
args: {{ concat (splitList " " .) (get $.settings "extra" | default list) | toJson }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  {{- range $name, $value := .root.Values.settings }}
  - {name: {{ $name }}, value: {{ $value | toString | quote }}}
  {{- end }}
  {{- range include "push-server.secrets" . | splitList " " }}
  - {name: {{ . | upper }}_FILE, value: /run/secrets/{{ . }}}
  {{- end }}
  - {name: HOST, value: 0.0.0.0}
  - {name: METRICS_DIR, value: /tmp/metrics}
  - {name: METRICS_HOST, value: 0.0.0.0}
  - {name: METRICS_PORT, value: "9100"}
  {{- if eq .process "reports" }}
  - {name: SPARK_LOCAL_DIRS, value: /scratch}
  {{- if hasPrefix "spark://" (.root.Values.settings.SPARK_MASTER | default "") }}
  - {name: SPARK_LOCAL_HOSTNAME, valueFrom: {fieldRef: {fieldPath: status.podIP}}}  # where executors find the driver
  {{- end }}
  {{- end }}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if eq .process "reports" }}
  - {name: lake, mountPath: /data}
  - {name: scratch, mountPath: /scratch}
  {{- end }}
{{- end -}}

{{/* What the pod of every process has in common. */}}
{{- define "push-server.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
volumes:
  - name: secrets
    secret:
      secretName: {{ required "secret.name: the Secret with the keys of secret.keys" .root.Values.secret.name }}
      defaultMode: 0440
      items:
        {{- range include "push-server.secrets" . | splitList " " }}
        - {key: {{ . }}, path: {{ . }}}
        {{- end }}
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 256Mi}
  {{- if eq .process "reports" }}
  - name: lake  # in an object store: what is left of it here is Java's archive of classes
    {{- if include "push-server.lake-is-volume" .root }}
    persistentVolumeClaim: {claimName: {{ .root.Release.Name }}-lake}
    {{- else }}
    emptyDir: {sizeLimit: 1Gi}
    {{- end }}
  - name: scratch
    emptyDir: {sizeLimit: {{ .root.Values.scratch.size }}}
  {{- end }}
{{- end -}}
