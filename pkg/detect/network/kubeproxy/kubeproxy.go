// Package kubeproxy finds a kube-proxy in bad health or with outdated rules.
package kubeproxy

import (
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
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
