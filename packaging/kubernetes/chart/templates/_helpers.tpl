{{- define "nodeagent.labels" -}}
app.kubernetes.io/name: nodeagent
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "nodeagent.selector" -}}
app.kubernetes.io/name: nodeagent
{{- end }}

{{- /* Whether and where the agent answers probes: on the address of its metrics. */}}
{{- define "nodeagent.listen" -}}
{{- $metrics := dig "report" "metrics" dict .Values.config }}
{{- if and .Values.probes.enabled (dig "enabled" true $metrics) }}
{{- dig "listen" "127.0.0.1:10680" $metrics }}
{{- end }}
{{- end }}

{{- /* The agents' user name, for the admission policies. */}}
{{- define "nodeagent.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:nodeagent
{{- end }}

{{- /* The configuration's name changes with its content: it is rolled out like a new image, and taken back like one. */}}
{{- define "nodeagent.config" -}}
nodeagent-{{ toYaml .Values.config | sha256sum | trunc 10 }}
{{- end }}

{{- /* The label of a node's object is the node's own, or there is none: a name may be too long for a label. */}}
{{- define "nodeagent.ownLabel" -}}
>-
        object == null || object.metadata.?labels['nodeagent.github.io/node'].orValue(variables.node) == variables.node
{{- end }}

{{- /* The namespace of the claims of the fleet budget (fleet.namespace). */}}
{{- define "nodeagent.claims" -}}
{{- $fleet := dig "fleet" dict .Values.config }}
{{- dig "namespace" "" $fleet | default (printf "%s-claims" .Release.Namespace) }}
{{- end }}
