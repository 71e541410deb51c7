"""The answer of gorush 1.22 at `/api/config`: all its keys, with the recommended values and redacted secrets."""

CONFIG = """core:
  enabled: true
  address: 127.0.0.1
  shutdown_timeout: 30
  port: "8088"
  max_notification: 100
  worker_num: 256
  queue_num: 8192
  mode: release
  sync: true
  ssl: false
  cert_path: "[REDACTED]"
  key_path: "[REDACTED]"
  cert_base64: ""
  key_base64: ""
  http_proxy: ""
  pid:
    enabled: false
    path: gorush.pid
    override: true
  auto_tls:
    enabled: false
    folder: .cache
    host: ""
  feedback_hook_url: ""
  feedback_timeout: 10
  feedback_header: []
api:
  push_uri: /api/push
  stat_go_uri: /api/stat/go
  stat_app_uri: /api/stat/app
  config_uri: /api/config
  sys_stat_uri: /sys/stats
  metric_uri: /metrics
  health_uri: /healthz
android:
  enabled: true
  key_path: "[REDACTED]"
  credential: ""
  max_retry: 0
huawei:
  enabled: false
  appsecret: ""
  appid: ""
  max_retry: 0
ios:
  enabled: true
  key_path: "[REDACTED]"
  key_base64: ""
  key_type: p8
  password: ""
  production: false
  max_concurrent_pushes: 256
  max_retry: 0
  key_id: "[REDACTED]"
  team_id: "[REDACTED]"
queue:
  engine: local
  nsq:
    addr: 127.0.0.1:4150
    topic: gorush
    channel: gorush
  nats:
    addr: 127.0.0.1:4222
    subj: gorush
    queue: gorush
  redis:
    addr: 127.0.0.1:6379
    username: ""
    password: ""
    db: 0
    stream_name: gorush
    group: gorush
    consumer: gorush
    with_tls: false
log:
  format: string
  access_log: stdout
  access_level: debug
  error_log: stderr
  error_level: error
  hide_token: {hide_token}
  hide_messages: false
stat:
  engine: memory
  redis:
    cluster: false
    addr: localhost:6379
    username: ""
    password: ""
    db: 0
  boltdb:
    path: bolt.db
    bucket: gorush
  buntdb:
    path: bunt.db
  leveldb:
    path: level.db
  badgerdb:
    path: badger.db
grpc:
  enabled: false
  port: "9000"
"""
