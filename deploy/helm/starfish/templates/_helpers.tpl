{{/* The endpoints of etcd. */}}
{{- define "starfish.endpoints" -}}
{{- if .Values.etcd.enabled -}}
http://etcd-0.etcd:2379,http://etcd-1.etcd:2379,http://etcd-2.etcd:2379
{{- else -}}
{{- required "etcd.endpoints is missing" .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{/* The template of a daemon's pods; takes the root, the daemon's name, and whether it is to be idle at the end. */}}
{{- define "starfish.pod" -}}
{{- $ := .root -}}
{{- $v := index $.Values .name -}}
metadata:
  labels: {app.kubernetes.io/name: {{ .name }}, app.kubernetes.io/part-of: starfish}
spec:
  {{- if not .idle }}
  restartPolicy: Never
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ if eq .name "pserver" }}60{{ else }}30{{ end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    {{- if eq .name "pserver" }}
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {app.kubernetes.io/name: {{ .name }}}
  tolerations: # of a silent node, half the default
    - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 120}
    - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 120}
  containers:
    - name: {{ .name }}
      image: {{ $.Values.image.repository }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}
      command: [{{ .name }}]
      {{- if eq .name "trainer" }}
      args: [--spec=/etc/starfish/job.yaml]
      {{- end }}
      envFrom:
        - configMapRef: {name: settings}
      env:
        - name: STARFISH_JOB
          valueFrom: {configMapKeyRef: {name: job, key: name}}
        - name: STARFISH_ADVERTISE # the port is the listener's
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- if .idle }}
        - {name: STARFISH_IDLE_WHEN_COMPLETE, value: "true"}
        {{- end }}
        - {name: GOMEMLIMIT, value: {{ $v.goMemLimit }}}
      ports:
        - {name: starfish, containerPort: 7070}
        - {name: admin, containerPort: 8080}
      startupProbe: {httpGet: {path: /healthz, port: admin}, periodSeconds: 2, failureThreshold: 30}
      livenessProbe: {httpGet: {path: /healthz, port: admin}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: admin}, periodSeconds: 5, timeoutSeconds: 5}
      resources: {{- toYaml $v.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        {{- if eq .name "pserver" }}
        - {name: checkpoints, mountPath: /checkpoints}
        {{- else }}
        - {name: job, mountPath: /etc/starfish, readOnly: true}
        {{- if include "starfish.data" $ }}
        - {name: data, mountPath: /data, readOnly: true}
        {{- end }}
        {{- end }}
  volumes:
    {{- if eq .name "pserver" }}
    - name: checkpoints
      persistentVolumeClaim: {claimName: {{ $.Values.checkpoints.existingClaim | default "checkpoints" }}}
    {{- else }}
    - name: job
      configMap: {name: job}
    {{- with include "starfish.data" $ }}
    - name: data
      persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
    {{- end }}
    {{- end }}
{{- end }}

{{/* The claim of the data; empty: none. */}}
{{- define "starfish.data" -}}
{{- if .Values.data.create }}data{{ else }}{{ .Values.data.existingClaim }}{{ end -}}
{{- end }}

{{/* The headless Service and the workload of a daemon; takes the root and the name. */}}
{{- define "starfish.daemon" -}}
{{- $ := .root -}}
{{- $v := index $.Values .name -}}
{{- $idle := eq $.Values.workload "services" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ $.Release.Namespace }}
  labels: {app.kubernetes.io/name: {{ .name }}, app.kubernetes.io/part-of: starfish}
spec:
  clusterIP: None # for monitors; daemons find one another in etcd
  publishNotReadyAddresses: true
  selector: {app.kubernetes.io/name: {{ .name }}}
  ports:
    - {name: admin, port: 8080}
---
{{- if not $idle }}
apiVersion: batch/v1
kind: Job
{{- else if eq .name "pserver" }}
apiVersion: apps/v1
kind: StatefulSet
{{- else }}
apiVersion: apps/v1
kind: Deployment
{{- end }}
metadata:
  name: {{ .name }}
  namespace: {{ $.Release.Namespace }}
  labels: {app.kubernetes.io/name: {{ .name }}, app.kubernetes.io/part-of: starfish}
spec:
  {{- if not $idle }}
  completionMode: Indexed
  completions: {{ $v.replicas }}
  parallelism: {{ $v.replicas }}
  backoffLimitPerIndex: 20
  podReplacementPolicy: Failed # never two of one name
  podFailurePolicy:
    rules:
      - action: FailJob # a human must look: usage, state lost, data changed
        onExitCodes: {containerName: {{ .name }}, operator: In, values: [2, 5, 6]}
      - action: Ignore # evicted, preempted, its node gone
        onPodConditions:
          - {type: DisruptionTarget, status: "True"}
      - action: Ignore # superseded, killed (out of memory), told to stop
        onExitCodes: {containerName: {{ .name }}, operator: In, values: [4, 137, 143]}
  {{- else }}
  replicas: {{ $v.replicas }}
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
  {{- if eq .name "pserver" }}
  serviceName: pserver
  podManagementPolicy: Parallel
  {{- else }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 1}
  {{- end }}
  {{- end }}
  template: {{- include "starfish.pod" (dict "root" $ "name" .name "idle" $idle) | nindent 4 }}
{{- end }}
