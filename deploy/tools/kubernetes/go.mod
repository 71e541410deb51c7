module status-push-server/deploy/tools/kubernetes

go 1.25.0

// Not built: its description of the API is what the chart is checked against.
require k8s.io/kubernetes v1.34.1
