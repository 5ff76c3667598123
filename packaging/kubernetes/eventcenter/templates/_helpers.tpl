{{- define "eventcenter.labels" -}}
app.kubernetes.io/name: eventcenter
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "eventcenter.selector" -}}
app.kubernetes.io/name: eventcenter
{{- end }}

{{- define "eventcenter.secret" -}}
{{ .Values.tls.secretName | default "eventcenter-tls" }}
{{- end }}

{{- /* Which clusters vouch for nodes and readers: this one. */}}
{{- define "eventcenter.clusters" -}}
clusters:
  - name: {{ .Values.cluster | required "cluster: the name of this cluster must be set" | quote }}
    audience: {{ .Values.audience | quote }}
    agents: {{ .Values.agents | toJson }}
    {{- with .Values.detectors }}
    detectors: {{ . | toJson }}
    {{- end }}
    readers: true
    {{- with .Values.nodes.poolLabel }}
    poolLabel: {{ . | quote }}
    {{- end }}
    {{- with .Values.nodes.selector }}
    nodeSelector: {{ . | quote }}
    {{- end }}
{{- end }}

{{- /* A quantity of Kubernetes as bytes. */}}
{{- define "eventcenter.bytes" -}}
{{- $text := toString . }}
{{- $number := regexFind "^[0-9]+" $text | int64 }}
{{- $unit := regexFind "[A-Za-z]*$" $text }}
{{- $factors := dict "" 1 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mul $number (get $factors $unit | required (printf "keep.bytes: %s: want a number with Mi, Gi, Ti or nothing" $text)) }}
{{- end }}

{{- define "eventcenter.oidc" -}}
{{- $settings := deepCopy .Values.oidc.settings -}}
{{- if .Values.oidc.secretName }}{{ $_ := set $settings "clientSecretFile" "/run/eventcenter/oidc/client-secret" }}{{ end -}}
{{- if .Values.oidc.caConfigMap }}{{ $_ := set $settings "caFile" "/run/eventcenter/oidc-ca/ca.crt" }}{{ end -}}
{{- toYaml $settings -}}
{{- end }}

{{- define "eventcenter.replicasSecret" -}}
{{- .Values.replicas.secretName | default (ternary "" "eventcenter-replicas" (not (empty .Values.nats.url))) }}
{{- end }}

{{- /* Where the journal is that the replicas keep together: in themselves, or in a NATS cluster of others. */}}
{{- define "eventcenter.replicas" -}}
journal: jetstream
{{- if .Values.nats.url }}
nats:
  url: {{ .Values.nats.url | quote }}
  {{- if .Values.replicas.secretName }}
  credentialsFile: /run/eventcenter/replicas/credentials
  {{- end }}
  {{- if .Values.nats.caConfigMap }}
  caFile: /run/eventcenter/nats-ca/ca.crt
  {{- end }}
{{- else }}
listen: ":10686"
secretFile: /run/eventcenter/replicas/secret
tls:
  certFile: /run/eventcenter/replicas/tls.crt
  keyFile: /run/eventcenter/replicas/tls.key
  caFile: /run/eventcenter/replicas/ca.crt
peers:
  {{- range until 3 }}
  - name: eventcenter-{{ . }}
    address: eventcenter-{{ . }}.eventcenter-replicas.{{ $.Release.Namespace }}.svc:10686
  {{- end }}
{{- end }}
{{- end }}
