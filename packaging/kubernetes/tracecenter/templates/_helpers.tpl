{{- define "tracecenter.labels" -}}
app.kubernetes.io/name: tracecenter
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "tracecenter.secret" -}}
{{ .Values.tls.secretName | default "tracecenter-tls" }}
{{- end }}

{{- define "tracecenter.oidc" -}}
{{- $settings := deepCopy .Values.oidc.settings -}}
{{- if .Values.oidc.secretName }}{{ $_ := set $settings "clientSecretFile" "/run/tracecenter/oidc/client-secret" }}{{ end -}}
{{- if .Values.oidc.caConfigMap }}{{ $_ := set $settings "caFile" "/run/tracecenter/oidc-ca/ca.crt" }}{{ end -}}
{{- toYaml $settings -}}
{{- end }}
