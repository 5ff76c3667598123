// Package dns asks the name servers of pods and of the node.
package dns

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// dns asks the servers that kubelet writes into /etc/resolv.conf of pods, one packet a minute each:
//
//	clusterDNS: [10.96.0.10]         kubelet's configuration: pods with dnsPolicy ClusterFirst
//	clusterDomain: cluster.local
//	resolvConf: /run/systemd/resolve/resolv.conf    "nameserver 192.0.2.53": pods with dnsPolicy Default, CoreDNS itself
//
//	cluster server    kubernetes.default.svc.cluster.local A: every cluster has it; over UDP, and over TCP every 5 minutes
//	resolver          localhost A over UDP: answered without asking anybody else (RFC 6761, 6.3), whatever the answer is
//
// https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/,
// https://kubernetes.io/docs/tasks/administer-cluster/dns-debugging-resolution/, resolv.conf(5), RFC 1035.
//
// The questions come from the host's network namespace: the way through kube-proxy, the routes and the packet filter
// of the node is that of pods, their own network policy is not. A server is given two tries of two seconds, and three
// looks in two minutes: a lost packet or a rollout of CoreDNS is no fault.
//
// Whether a silent server is the node's fault is not known here: other nodes may be silent too. So it is a warning, and
// fatal only after five minutes, and only when it is the node's share: every server there is, the cluster's and the
// resolvers, is silent (two services that have nothing in common); or the cluster server lives on the node itself (a
// link-local address: NodeLocal DNSCache), so that all pods here are without DNS.
//
// Known false alarms: a cluster without DNS for which kubelet is told an address all the same (pods are told it too;
// take clusterDNS out, or switch the check off); resolvers that refuse to answer or fail for names out of reach (any
// answer proves that a resolver is alive, unless upstreamName says what it must know); TCP to resolvers is often
// forbidden and is not tried.

// Settings are the thresholds of dns.
type Settings struct {
	Timeout time.Duration `yaml:"timeout"` // of one try; a question over UDP has two
	// a name that the resolvers of the node must know; unless set, any answer is good
	UpstreamName string        `yaml:"upstreamName"`
	FatalAfter   time.Duration `yaml:"fatalAfter"` // silence that is the node's own share, for this long
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. A server in the same
// cluster answers within a millisecond; glibc gives up on a server after five seconds.
func DefaultSettings() Settings {
	return Settings{Timeout: 2 * time.Second, FatalAfter: 5 * time.Minute}
}

const (
	ID          = "dns"
	dnsTCPEvery = 5 * time.Minute
)

// New finds name servers of pods that do not answer, or not as they should.
func New(s Settings) detect.Check {
	c := &dnsCheck{settings: s, servers: map[dnsServer]*dnsHistory{}}
	return detect.Check{
		ID:      ID,
		Domain:  "network",
		Summary: "pods of this node cannot resolve names",
		Advice: "Ask by hand: `dig @<server> kubernetes.default.svc.cluster.local +time=2 +tries=1`, also with " +
			"`+tcp`, here and on another node. Silent here only: look at kube-proxy, the packet filter and the " +
			"routes of this node. Silent everywhere: look at the pods with label k8s-app=kube-dns in kube-system, " +
			"and at what they forward to.",
		Doc:       dnsDoc(),
		Condition: detect.NetworkProblem(),
		Every:     time.Minute,
		Deadline:  4*s.Timeout + 2*time.Second,
		Policy: finding.Policy{
			Raise: finding.Hold{Looks: 3, For: 2 * time.Minute},
			Clear: finding.Hold{Looks: 2, For: time.Minute},
		},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) { return c.observe(ctx, h) },
	}
}

func dnsDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{
			"kubelet's configuration: clusterDNS, clusterDomain, resolvConf", "the nameserver lines of resolvConf",
			"one DNS question a minute to each of these servers, one over TCP every 5 minutes to those of the cluster",
		},
		Why: "Nearly every request of a pod begins with a name. A dead resolver looks like slow or failing " +
			"applications, and CoreDNS forwards to the resolvers of the node that it runs on.",
		Faults: []detect.Fault{
			{Reason: "DNSNotAnswering", Severity: finding.Fatal, When: "two tries of 2 s without answer, in 3 looks; " +
				"fatal after 5 minutes when all servers are silent, or when the server is on this node"},
			{Reason: "DNSUnreachable", Severity: finding.Fatal, When: "the kernel refuses to send there: no route, " +
				"or the node's own packet filter; fatal as above"},
			{Reason: "DNSPortRefused", Severity: finding.Fatal, When: "nobody is behind the address: kube-proxy " +
				"rejects services without ready pods; fatal only for a server on this node"},
			{Reason: "DNSNameMissing", Severity: finding.Warning, When: "NXDOMAIN for the name that every cluster " +
				"has: clusterDomain is another one, or the server is not this cluster's"},
			{Reason: "DNSServerFailing", Severity: finding.Warning, When: "SERVFAIL, REFUSED or a malformed answer: " +
				"the server runs and has nothing to answer from"},
			{Reason: "DNSOverTCPFailing", Severity: finding.Warning, When: "UDP is answered, TCP is not: answers " +
				"above 512 bytes are lost"},
			{Reason: "DNSOverUDPFailing", Severity: finding.Warning, When: "TCP is answered, UDP is not"},
			{Reason: "DNSResolverOnLoopback", Severity: finding.Info, When: "resolvConf names an address such as " +
				"127.0.0.53, which is another machine's in each pod; a CoreDNS here asks itself and dies of it"},
		},
		FalseAlarms: "A cluster without DNS whose kubelets are told a clusterDNS address: take it out, or switch the " +
			"check off. Network policies of pods are not seen, since the questions come from the host.",
	}
}
