package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

// isGateway gives the node an address in the pods' network, so that probes and tests can reach them; there is no
// masquerading, because pods need not leave the node.
var cniTemplate = template.Must(template.New("cni").Parse(`{
  "cniVersion": "1.0.0",
  "name": "{{.Network}}",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "{{.Bridge}}",
      "isGateway": true,
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "{{.Paths.CNINetworksDir}}",
        "ranges": [[{"subnet": "{{.PodCIDR}}"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`))

// The thresholds are low because a machine that builds software is often nearly full; images are never collected
// because there is no registry to pull them from again.
var kubeletTemplate = template.Must(template.New("kubelet").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: {{.Ports.Kubelet}}
healthzBindAddress: 127.0.0.1
healthzPort: {{.Ports.KubeletHealth}}
readOnlyPort: 0
tlsCertFile: {{.Dir}}/pki/kubelet-serving.crt
tlsPrivateKeyFile: {{.Dir}}/pki/kubelet-serving.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true, cacheTTL: 5s}
  x509: {clientCAFile: {{.Paths.CAFile}}}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 5s, cacheUnauthorizedTTL: 1s}
containerRuntimeEndpoint: unix://{{.Paths.CRISocket}}
cgroupDriver: {{if .Systemd}}systemd{{else}}cgroupfs{{end}}
cgroupRoot: {{.Paths.CgroupRoot}}
failCgroupV1: {{.Systemd}}
failSwapOn: false
enforceNodeAllocatable: [pods]
oomScoreAdj: 0
maxPods: 250
serializeImagePulls: false
staticPodPath: {{.Paths.StaticPodDir}}
podLogsDir: {{.Paths.PodLogsDir}}
volumePluginDir: {{.Dir}}/volume-plugins
resolvConf: {{.Dir}}/config/resolv.conf
makeIPTablesUtilChains: false
clusterDomain: cluster.local
evictionHard:
  memory.available: 50Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
syncFrequency: 10s
fileCheckFrequency: 2s
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 1m
volumeStatsAggPeriod: 30s
kubeAPIQPS: 100
kubeAPIBurst: 200
eventRecordQPS: 100
eventBurst: 200
`))

// The apiserver finds kubelet by the node's InternalIP, which has no listener: its calls to nodes go through the node
// proxy, which dials 127.0.0.1 instead.
var egressTemplate = template.Must(template.New("egress").Parse(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds: {udsName: {{.ProxySocket}}}
`))

// Requests of nodes and people, and of kubelet on behalf of its callers; the control plane's own requests are many.
var auditTemplate = template.Must(template.New("audit").Parse(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: Request
  verbs: [create]
  resources:
  - group: authentication.k8s.io
    resources: [tokenreviews]
  - group: authorization.k8s.io
    resources: [subjectaccessreviews]
- level: Metadata
`))

var resolvTemplate = template.Must(
	template.New("resolv.conf").Parse("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"))

func (l *Lab) proxySocket() string { return filepath.Join(l.Dir, "run/node-proxy.sock") }

func (l *Lab) egressConfig() string { return filepath.Join(l.Dir, "config/egress.yaml") }

func (l *Lab) auditPolicy() string { return filepath.Join(l.Dir, "config/audit.yaml") }

// AuditLog is the apiserver's log of requests: one JSON object a line, audit.k8s.io/v1.
func (l *Lab) AuditLog() string { return filepath.Join(l.Paths.LogDir, "audit.log") }

func (l *Lab) pki(name string) string { return filepath.Join(l.Dir, "pki", name) }

// configure writes every configuration file and kubeconfig.
func (l *Lab) configure() error {
	values := map[string]any{
		"Dir": l.Dir, "Paths": l.Paths, "Ports": l.state.Ports, "Systemd": l.state.systemd(), "SandboxImage": sandboxImage, "Network": Network,
		"Bridge": PodBridge, "PodCIDR": PodCIDR, "ProxySocket": l.proxySocket(), "ImagePolicy": l.imagePolicy(),
	}
	for path, t := range map[string]*template.Template{
		l.crioConfig():       crioTemplate,
		l.imagePolicy():      policyTemplate,
		l.containerdConfig(): l.containerdTemplate(),
		filepath.Join(l.Paths.CNIConfDir, "10-lab.conflist"): cniTemplate,
		l.Paths.KubeletConfig:                                kubeletTemplate,
		l.egressConfig():                                     egressTemplate,
		l.auditPolicy():                                      auditTemplate,
		filepath.Join(l.Dir, "config/resolv.conf"):           resolvTemplate,
	} {
		if err := renderFile(path, t, values); err != nil {
			return err
		}
	}
	if l.Paths.CRIODir != "" {
		if err := renderFile(l.runtime(), runcTemplate, nil); err != nil {
			return err
		}
		if err := os.Chmod(l.runtime(), 0o755); err != nil {
			return err
		}
	}
	for path, user := range map[string]string{
		l.Paths.AdminKubeconfig:              "admin",
		l.Paths.KubeletKubeconfig:            "kubelet",
		l.kubeconfigOf("controller-manager"): "controller-manager",
		l.kubeconfigOf("scheduler"):          "scheduler",
	} {
		who := identity{Cert: l.pki(user + ".crt"), Key: l.pki(user + ".key")}
		if err := l.writeKubeconfig(path, who); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) kubeconfigOf(name string) string {
	return filepath.Join(l.Dir, "config", name+".kubeconfig")
}

func renderFile(path string, t *template.Template, values any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	return writeFile(path, b.Bytes(), 0o600)
}
