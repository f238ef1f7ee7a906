{{/* Labels that the chart gives every object. */}}
{{- define "keda-gpu-gateway.ownLabels" -}}
app.kubernetes.io/name: keda-gpu-gateway
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "keda-gpu-gateway.labels" -}}
{{ include "keda-gpu-gateway.ownLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* `labels:` and `annotations:` of an object: of component, with its own annotations. Takes root, component, annotations. */}}
{{- define "keda-gpu-gateway.meta" -}}
labels:
  {{- include "keda-gpu-gateway.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels by which Services and the others find the pods of a component. They do not name the release: there is one for a namespace. */}}
{{- define "keda-gpu-gateway.selector" -}}
app.kubernetes.io/name: keda-gpu-gateway
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels and annotations of a component's pods. Takes root, component, values (gateway or agent), checksums. */}}
{{- define "keda-gpu-gateway.podMeta" -}}
labels:
  {{- $own := include "keda-gpu-gateway.labels" .root | fromYaml }}
  {{- $selected := include "keda-gpu-gateway.selector" .component | fromYaml }}
  {{- toYaml (merge (dict) $selected (.values.podLabels | default dict) (omit $own "helm.sh/chart")) | nindent 2 }}
{{- with merge (dict) (.checksums | default dict) (.values.podAnnotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Image of a program. Takes root, program, component. */}}
{{- define "keda-gpu-gateway.image" -}}
{{- with .root.Values.image -}}
{{ .registry }}/{{ .repository }}/{{ $.program }}{{ with get .digests $.component }}@{{ . }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* `true` where the gateway asks the API server about the cluster. */}}
{{- define "keda-gpu-gateway.readsCluster" -}}
{{- if eq .Values.gateway.directory "kube" }}true{{ end }}
{{- end }}

{{/* `true` where the agents' port has TLS. */}}
{{- define "keda-gpu-gateway.hasTLS" -}}
{{- if ne .Values.tls.mode "none" }}true{{ end }}
{{- end }}

{{/* `true` where agents read the node. */}}
{{- define "keda-gpu-gateway.readsNode" -}}
{{- if eq .Values.agent.source "nvml" }}true{{ end }}
{{- end }}

{{/* The namespaces that the gateway watches; none is all. Before Kubernetes 1.30 a token does not name its node: the gateway then looks at the
     agent's pod, and so at the agents' namespace. */}}
{{- define "keda-gpu-gateway.namespaces" -}}
{{- $all := .Values.gateway.namespaces | default list }}
{{- if and $all (eq .Values.agentAuth.mode "token") (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- $all = append $all .Release.Namespace | uniq }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* Name of what is not in a namespace: another release, in another namespace, has another. */}}
{{- define "keda-gpu-gateway.clusterName" -}}
gpu-gateway.{{ .Release.Namespace }}
{{- end }}

{{/* Secret with the gateway's certificate. */}}
{{- define "keda-gpu-gateway.tlsSecret" -}}
{{- if eq .Values.tls.mode "existing" }}{{ .Values.tls.existing.secretName }}
{{- else if eq .Values.tls.mode "cert-manager" }}gpu-gateway-certificate
{{- else }}gpu-gateway-tls{{ end }}
{{- end }}

{{/* Secret in KEDA's namespace with what KEDA needs for TLS. */}}
{{- define "keda-gpu-gateway.kedaSecret" -}}
{{- .Values.keda.tls.clusterTriggerAuthentication.secretName | default (printf "%s-keda-client" (include "keda-gpu-gateway.clusterName" .)) }}
{{- end }}

{{/* Ends with a message where a time is out of range. Takes name, value, least, most (empty is none). */}}
{{- define "keda-gpu-gateway.within" -}}
{{- $least := include "keda-gpu-gateway.milliseconds" .least | int64 }}
{{- $value := include "keda-gpu-gateway.milliseconds" .value | int64 }}
{{- if or (lt $value $least) (and .most (gt $value (include "keda-gpu-gateway.milliseconds" (.most | default "0s") | int64))) }}
{{- fail (printf "%s=%s: write a time %s" .name .value (ternary (printf "from %s to %s" .least .most) (printf "of %s or more" .least) (ne .most ""))) }}
{{- end }}
{{- end }}

{{/* Milliseconds of a time such as 1m30s. */}}
{{- define "keda-gpu-gateway.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 }}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 }}
{{- /* A leading zero would make the number octal. */}}
{{- $digits := regexReplaceAll "^0+|[a-z]+$" . "" | default "0" }}
{{- $sum = add $sum (mul (int64 $digits) (get $units (regexReplaceAll "^[0-9]+" . ""))) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Where the old name's Service is. */}}
{{- define "keda-gpu-gateway.compatNamespace" -}}
{{- .Values.compat.namespace | default .Values.keda.namespace }}
{{- end }}

{{/* Every name by which the gateway is called, as JSON. */}}
{{- define "keda-gpu-gateway.dnsNames" -}}
{{- $names := list }}
{{- $services := list (list "gpu-gateway" .Release.Namespace) (list "gpu-gateway-agents" .Release.Namespace) }}
{{- with .Values.compat.serviceName }}
{{- $services = append $services (list . (include "keda-gpu-gateway.compatNamespace" $)) }}
{{- end }}
{{- range $services }}
{{- $name := join "." . }}
{{- $names = concat $names (list $name (printf "%s.svc" $name) (printf "%s.svc.%s" $name $.Values.clusterDomain)) }}
{{- end }}
{{- concat $names (.Values.tls.extraDNSNames | default list) | uniq | toJson }}
{{- end }}

{{/* Volume source with `ca.crt` from a ConfigMap or a Secret. Takes configMap, secret. */}}
{{- define "keda-gpu-gateway.caVolume" -}}
{{- if .configMap -}}
configMap:
  name: {{ .configMap | toYaml }}
  items: [{key: ca.crt, path: ca.crt}]
{{- else -}}
secret:
  secretName: {{ .secret | toYaml }}
  items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}

{{/* ConfigMap or Secret by which agents know the gateway, as YAML with configMap and secret. */}}
{{- define "keda-gpu-gateway.agentsCA" -}}
{{- $given := .Values.tls.agentsCA }}
{{- if or $given.configMap $given.secret }}
{{- toYaml $given }}
{{- else if eq .Values.tls.mode "generated" }}
configMap: gpu-gateway-ca
{{- else if eq .Values.tls.mode "cert-manager" }}
secret: gpu-agent-ca
{{- end }}
{{- end }}
