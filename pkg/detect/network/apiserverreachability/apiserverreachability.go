// Package apiserverreachability checks whether the apiserver answers at each address that the node has for it.
package apiserverreachability

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// apiserver-reachability finds out whether this node can reach the apiserver, from the cheapest source to the most
// expensive:
//
//	1  the agent's own last request was answered within two minutes (any status)
//	2  the kernel has received data from there on some established connection within the last minute: kubelet renews its
//	   Lease every 10 s on a connection that it keeps (sock_diag(7), tcp_info.tcpi_last_data_recv). It costs no packet
//	3  a new connection to the server of kubelet's kubeconfig, TLS verified, GET /livez without credentials: any status below
//	   500 is an answer, 401 and 403 too. Once a minute during a fault; every five if 2 is not available
//
// so that a fleet of 10,000 healthy nodes sends the apiserver no request. In addition the check opens, as pods do, a
// bare TCP connection to the address of the service kubernetes.default (from one DNS query an hour to the cluster's
// name server) every five minutes: through the rules of kube-proxy or of its replacement.
//
// https://kubernetes.io/docs/concepts/architecture/leases/ (node heartbeats),
// https://kubernetes.io/docs/reference/using-api/health-checks/, linux/tcp.h (struct tcp_info).
//
// All findings are warnings: running pods go on; without kubelet's heartbeats the node becomes NotReady by itself after
// 50 s; and if all nodes lose the apiserver at once, none of them must be taken out of service for it.

const (
	apiserverOwnAnswer = 2 * time.Minute // maximum age of the agent's own last answer
	// maximum age of received data: six renewals of the Lease, two pings of HTTP/2
	apiserverRecent       = time.Minute
	apiserverAskEvery     = 5 * time.Minute // while healthy, if the kernel's connections cannot be read
	apiserverResolveEvery = 10 * time.Minute
	serviceTryEvery       = 5 * time.Minute
	serviceResolveEvery   = time.Hour
)

// Settings are the settings of apiserver-reachability.
type Settings struct {
	Timeout time.Duration `yaml:"timeout"` // of one connection, query or request
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. Kubelet allows 10 seconds
// for a renewal of its Lease.
func DefaultSettings() Settings {
	return Settings{Timeout: 5 * time.Second}
}

// New finds a node that cannot reach the apiserver, or whose pods cannot.
func New(s Settings) detect.Check {
	c := &apiserverCheck{settings: s}
	return detect.Check{
		ID:      "apiserver-reachability",
		Domain:  "network",
		Summary: "the apiserver cannot be reached from this node",
		Advice: "Run `curl -k https://<endpoint>/livez` here and on another node. If it fails only here, check the " +
			"routes, the packet filter and the load balancer's state of this node. If only the service address " +
			"fails, check kube-proxy or the network plugin on this node.",
		Doc: detect.Doc{
			Reads: []string{
				"the time of the last answer to the agent's own requests",
				"the kernel's connections to the apiserver's port: when data was last received",
				"GET /livez of the server in kubelet's kubeconfig, only if neither shows an answer",
				"a TCP connection to the service kubernetes.default every 5 minutes",
			},
			Why: "A node that cannot reach the apiserver gets no new pods and cannot report the status of its own. " +
				"Controllers and operators among its pods use the service address and stop working when it is " +
				"unreachable.",
			Faults: []detect.Fault{
				{Reason: "APIServerUnreachable", Severity: finding.Warning,
					When: "no connection or no answer within 5 s, in 3 runs over 2 minutes, and no data received " +
						"for a minute"},
				{Reason: "APIServerNameUnknown", Severity: finding.Warning,
					When: "the name in kubelet's kubeconfig cannot be resolved, as above"},
				{Reason: "APIServerCertificateInvalid", Severity: finding.Warning,
					When: "the server's certificate is not trusted by kubelet's kubeconfig: expired, or of another " +
						"server"},
				{Reason: "APIServerFailing", Severity: finding.Warning, When: "the apiserver, or the load balancer " +
					"in front of it, answers with 5xx"},
				{Reason: "APIServerServiceUnreachable", Severity: finding.Warning,
					When: "the apiserver answers, but its service address does not, in 3 runs over 2 minutes: the " +
						"fault is on this node"},
			},
			FalseAlarms: "A restart of the apiserver is not reported before two minutes. If no node reaches the " +
				"apiserver, all report it: never fatal.",
		},
		Every:    time.Minute,
		Deadline: 4*s.Timeout + time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 3, For: 2 * time.Minute}},
		Run:      c.observe,
	}
}
