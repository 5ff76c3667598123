// Package apiserverreachability asks the apiserver by each address that the node has for it.
package apiserverreachability

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// apiserver-reachability finds out whether this node can speak to the apiserver, from the cheapest witness to the
// dearest:
//
//	1  the agent's own last request was answered within two minutes (any status)
//	2  the kernel has received data from there on some established connection within the last minute: kubelet renews its
//	   Lease every 10 s on a connection that it keeps (sock_diag(7), tcp_info.tcpi_last_data_recv). Nothing is sent
//	3  a new connection to the server of kubelet's kubeconfig, TLS verified, GET /livez without credentials: any status below
//	   500 is an answer, 401 and 403 too. Once a minute while something is wrong; every five where 2 cannot be had
//
// so that a fleet of 10,000 healthy nodes asks the apiserver nothing. And, as pods use it, a bare TCP connection to the
// address of the service kubernetes.default (found by one DNS question an hour to the cluster's name server) every five
// minutes: the way through the rules of kube-proxy or of what stands in for it.
//
// https://kubernetes.io/docs/concepts/architecture/leases/ (node heartbeats),
// https://kubernetes.io/docs/reference/using-api/health-checks/, linux/tcp.h (struct tcp_info).
//
// All are warnings: the pods that run go on; kubelet's silence makes the node NotReady by itself after 50 s; and when
// the apiserver is away from all nodes at once, none of them shall be taken out for it. The message tells what is the
// node's.
//
// Known false alarms: an apiserver that restarts or a rollout of the control plane (held for two minutes, three looks).

const (
	apiserverID = "apiserver-reachability"

	apiserverOwnAnswer = 2 * time.Minute // how old the agent's own last answer may be
	// how old data from there may be: six renewals of the Lease, two pings of HTTP/2
	apiserverRecent       = time.Minute
	apiserverAskEvery     = 5 * time.Minute // while all is well and the kernel cannot be asked
	apiserverResolveEvery = 10 * time.Minute
	serviceTryEvery       = 5 * time.Minute
	serviceResolveEvery   = time.Hour
)

// Settings are the settings of apiserver-reachability.
type Settings struct {
	Timeout time.Duration `yaml:"timeout"` // of one connection, question or request
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. Kubelet
// gives a renewal of its Lease 10 seconds.
func DefaultSettings() Settings {
	return Settings{Timeout: 5 * time.Second}
}

// New finds a node that cannot speak to the apiserver, or whose pods cannot.
func New(s Settings) detect.Check {
	c := &apiserverCheck{settings: s}
	return detect.Check{
		ID:      apiserverID,
		Domain:  "network",
		Summary: "the apiserver cannot be reached from this node",
		Advice: "Try by hand: `curl -k https://<endpoint>/livez`, here and on another node. Only here: look at " +
			"routes, packet filter and the load balancer's view of this node. When only the service address fails, " +
			"look at kube-proxy or the network plugin of this node.",
		Doc: detect.Doc{
			Reads: []string{
				"when the agent's own last request was answered",
				"the kernel's list of connections to the apiserver's port: when data last came",
				"GET /livez of the server in kubelet's kubeconfig, only when neither has an answer",
				"a TCP connection to the service kubernetes.default every 5 minutes",
			},
			Why: "A node that cannot reach the apiserver gets no new pods and cannot tell of those that it has. " +
				"Controllers and operators among its pods use the service address and stand still when that leads nowhere.",
			Faults: []detect.Fault{
				{Reason: "APIServerUnreachable", Severity: finding.Warning,
					When: "no connection or no answer within 5 s, in 3 looks over 2 minutes, and no data from there " +
						"for a minute"},
				{Reason: "APIServerNameUnknown", Severity: finding.Warning,
					When: "the name in kubelet's kubeconfig cannot be resolved, as above"},
				{Reason: "APIServerCertificateInvalid", Severity: finding.Warning,
					When: "who answers there has no certificate that kubelet's kubeconfig trusts: expired, or " +
						"somebody else's"},
				{Reason: "APIServerFailing", Severity: finding.Warning, When: "the apiserver, or the load balancer " +
					"before it, answers with 5xx"},
				{Reason: "APIServerServiceUnreachable", Severity: finding.Warning,
					When: "the apiserver answers, but its service address does not, in 3 looks over 2 minutes: the " +
						"fault is on this node"},
			},
			FalseAlarms: "An apiserver that restarts is held for two minutes. Where the apiserver is away from all " +
				"nodes, all say so: never fatal.",
		},
		Every:    time.Minute,
		Deadline: 4*s.Timeout + time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 3, For: 2 * time.Minute}},
		Run:      c.observe,
	}
}
