// Package kubeproxy finds a kube-proxy in bad health or with outdated rules.
package kubeproxy

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kube-proxy queries kube-proxy's health server and looks up its process:
//
//	GET http://127.0.0.1:10256/livez
//	200 {"lastUpdated":"2026-11-22T12:42:36.28Z","currentTime":"2026-11-22T12:42:36.28Z","healthy":true}
//	200 {"lastUpdated": "2026-11-21 01:59:30.1 +0000 UTC m=+12.3","currentTime": "2026-11-21 …"}   older ones
//	503 the same, when a change of Services or EndpointSlices has waited for longer than a minute (twice syncPeriod)
//
// https://kubernetes.io/docs/reference/command-line-tools-reference/kube-proxy/ (healthz-bind-address),
// k8s.io/kubernetes/pkg/proxy/healthcheck/proxy_health.go. /healthz has "nodeEligible" too and is 503 while the
// autoscaler removes the node, which is no fault. So the check queries /livez, and /healthz with its nodeEligible only
// if /livez is 404, as before 1.28. Without changes there is no backlog, so an unreachable apiserver does not make
// kube-proxy unhealthy.
//
// The address is that of the flag --healthz-bind-address; else the one on which a process listens on port 10256,
// because some bind it to the node's address only. A kube-proxy inside another program (k3s) has no process of its own:
// an answer of its server is enough.

// Settings are the settings of kube-proxy.
type Settings struct {
	Port    int           `yaml:"port"`    // of the health server, unless a flag of the process names it
	Timeout time.Duration `yaml:"timeout"` // an answer that takes longer counts as none
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. A healthy kube-proxy
// answers from memory within a millisecond.
func DefaultSettings() Settings {
	return Settings{Port: 10256, Timeout: 3 * time.Second}
}

// New finds a dead or hung kube-proxy, or one that no longer updates the services.
func New(s Settings) detect.Check {
	c := &kubeProxyCheck{settings: s, program: discover.Program{Comm: "kube-proxy"}}
	return detect.Check{
		ID:      "kube-proxy",
		Domain:  "network",
		Summary: "kube-proxy does not run or does not sync: services lead to pods that are gone",
		Advice: "Find its pod, `kubectl -n kube-system get pods -l k8s-app=kube-proxy --field-selector " +
			"spec.nodeName=NODE`, and read its log, `kubectl -n kube-system logs POD`, or on the node `crictl ps -a " +
			"--name kube-proxy` and `crictl logs ID`. One that does not sync usually waits for the iptables lock " +
			"(`fuser /run/xtables.lock`) or fails to load rules that another program broke.",
		Doc: detect.Doc{
			Reads: []string{"GET /livez (or /healthz) of kube-proxy on this node, every minute",
				"/proc/PID/stat of its process", "kubelet's pods, only while no kube-proxy is found"},
			Why: "Service addresses are rules in the kernel. Without kube-proxy they stay as they are: requests are " +
				"still sent to pods that are gone, and new services do not exist on this node.",
			Faults: []detect.Fault{
				{Reason: "KubeProxyNotSyncing", Severity: finding.Fatal,
					When: "it reports that a change has waited for longer than a minute, for two minutes"},
				{Reason: "KubeProxyNotAnswering", Severity: finding.Fatal,
					When: "its process runs and its health server does not answer within 3 s, for two minutes"},
				{Reason: "KubeProxyNotRunning", Severity: finding.Fatal,
					When: "a pod of it is on this node and there is no process, for two minutes"},
			},
			FalseAlarms: "With a network plugin that replaces kube-proxy the check is not applicable. Draining by " +
				"the autoscaler (/healthz is 503, /livez is not) is no fault.",
		},
		Condition: finding.Condition{
			Type: "KubeProxyUnhealthy", ReadyType: "KubeProxyReady",
			HealthyReason: "KubeProxyIsHealthy", HealthyMessage: "kube-proxy on the node is functioning properly",
		},
		Every:    time.Minute,
		Deadline: 3*s.Timeout + 2*time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 3, For: 2 * time.Minute}},
		Run:      c.observe,
	}
}

// proxyHealth is the body of kube-proxy's health answer.
type proxyHealth struct {
	LastUpdated  *string `json:"lastUpdated"`
	CurrentTime  string  `json:"currentTime"`
	NodeEligible *bool   `json:"nodeEligible"` // of /healthz only
}

func (seen observation) health() (proxyHealth, bool) {
	var health proxyHealth
	err := json.Unmarshal([]byte(seen.body), &health)
	return health, err == nil && health.LastUpdated != nil
}

// isProxy reports whether a kube-proxy answered.
func (seen observation) isProxy() bool {
	_, ok := seen.health()
	return seen.err == nil && ok
}

func (seen observation) evaluate() []finding.Finding {
	health, known := seen.health()
	draining := health.NodeEligible != nil && !*health.NodeEligible
	switch {
	case seen.err != nil:
		return seen.fault("KubeProxyNotAnswering", "does not answer %s: %s", seen.url, checkkit.ErrorText(seen.err))
	case seen.status == http.StatusOK:
		return nil
	case draining && strings.HasSuffix(seen.url, "/healthz"):
		return nil // 503 has two causes here, and the node is being removed anyway
	case known && seen.status == http.StatusServiceUnavailable:
		return seen.fault("KubeProxyNotSyncing", "has not updated the services%s: read its log, and check which "+
			"process holds /run/xtables.lock", health.age())
	}
	return seen.fault("KubeProxyNotAnswering", "answers %s with status %d: %s", seen.url, seen.status,
		checkkit.Sanitize(seen.body, 200))
}

// age renders how long ago the last update was. Both times are kube-proxy's own.
func (p proxyHealth) age() string {
	last, err := parseTime(*p.LastUpdated)
	now, errNow := parseTime(p.CurrentTime)
	if err != nil || errNow != nil || now.Before(last) || last.IsZero() {
		return ""
	}
	return " for " + now.Sub(last).Round(time.Second).String()
}

// parseTime reads RFC 3339, or the format of older kube-proxies: time.Time.String, followed by Go's monotonic reading.
func parseTime(text string) (time.Time, error) {
	if parsed, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return parsed, nil
	}
	text, _, _ = strings.Cut(text, " m=")
	return time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
}
