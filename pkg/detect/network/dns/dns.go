// Package dns checks the name servers of pods and of the node.
package dns

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// dns queries the servers that kubelet writes into /etc/resolv.conf of pods, one packet a minute each:
//
//	clusterDNS: [10.96.0.10]         kubelet's configuration: pods with dnsPolicy ClusterFirst
//	clusterDomain: cluster.local
//	resolvConf: /run/systemd/resolve/resolv.conf    "nameserver 192.0.2.53": pods with dnsPolicy Default, CoreDNS itself
//
//	cluster server    kubernetes.default.svc.cluster.local A: every cluster has it; over UDP, and over TCP every 5 minutes
//	resolver          localhost A over UDP: answered without asking another server (RFC 6761, 6.3), whatever the answer
//
// https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/,
// https://kubernetes.io/docs/tasks/administer-cluster/dns-debugging-resolution/, resolv.conf(5), RFC 1035.
//
// The queries come from the host's network namespace: they take the path of pods' queries through kube-proxy, the
// routes and the packet filter of the node, but not through the pods' network policy.
//
// Other nodes may get no answer either, so an unanswered query is a warning. It is fatal only after five minutes, and
// only if this node is the cause: every server, of the cluster and of the node, is silent (two services that are
// independent of each other); or the cluster server runs on the node itself (a link-local address: NodeLocal DNSCache).
//
// Resolvers may refuse to answer, or fail for names out of reach: any answer proves that a resolver is alive, unless
// upstreamName names a record that it must know. TCP to resolvers is often forbidden and is not tried.

// Settings are the thresholds of dns.
type Settings struct {
	Timeout time.Duration `yaml:"timeout"` // of one attempt; a query over UDP has two
	// a name that the resolvers of the node must know; unless set, any answer is accepted
	UpstreamName string        `yaml:"upstreamName"`
	FatalAfter   time.Duration `yaml:"fatalAfter"` // no answer for this long is fatal, if the node itself is the cause
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. A server in the same
// cluster answers within a millisecond; glibc gives up on a server after five seconds.
func DefaultSettings() Settings {
	return Settings{Timeout: 2 * time.Second, FatalAfter: 5 * time.Minute}
}

const dnsTCPEvery = 5 * time.Minute

// New finds name servers of pods that do not answer, or answer wrongly.
func New(s Settings) detect.Check {
	c := &dnsCheck{settings: s, servers: map[dnsServer]*dnsHistory{}}
	return detect.Check{
		ID:      "dns",
		Domain:  "network",
		Summary: "pods of this node cannot resolve names",
		Advice: "Run `dig @<server> kubernetes.default.svc.cluster.local +time=2 +tries=1`, also with `+tcp`, " +
			"here and on another node. If there is no answer only here, check kube-proxy, the packet filter and the " +
			"routes of this node. If there is none anywhere, check the pods with label k8s-app=kube-dns in " +
			"kube-system, and the servers that they forward to.",
		Doc:       dnsDoc(),
		Condition: detect.NetworkProblem(),
		Every:     time.Minute,
		Deadline:  4*s.Timeout + 2*time.Second,
		Policy: finding.Policy{
			Raise: finding.Hold{Runs: 3, For: 2 * time.Minute},
			Clear: finding.Hold{Runs: 2, For: time.Minute},
		},
		Run: c.observe,
	}
}

func dnsDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{
			"kubelet's configuration: clusterDNS, clusterDomain, resolvConf", "the nameserver lines of resolvConf",
			"one DNS query per minute to each of these servers, and one over TCP every 5 minutes to those of the " +
				"cluster",
		},
		Why: "Nearly every request of a pod begins with a name. A failed resolver appears as slow or failing " +
			"applications, and CoreDNS forwards to the resolvers of the node that it runs on.",
		Faults: []detect.Fault{
			{Reason: "DNSNotAnswering", Severity: finding.Fatal, When: "two attempts of 2 s without an answer, in 3 " +
				"runs; fatal after 5 minutes if no server answers, or if the server is on this node"},
			{Reason: "DNSUnreachable", Severity: finding.Fatal, When: "the kernel refuses to send there: no route, " +
				"or the node's own packet filter; fatal as above"},
			{Reason: "DNSPortRefused", Severity: finding.Fatal, When: "no process listens behind the address: " +
				"kube-proxy rejects services without ready pods; fatal only for a server on this node"},
			{Reason: "DNSNameMissing", Severity: finding.Warning, When: "NXDOMAIN for the name that every cluster " +
				"has: clusterDomain is wrong, or the server belongs to another cluster"},
			{Reason: "DNSServerFailing", Severity: finding.Warning, When: "SERVFAIL, REFUSED or a malformed answer: " +
				"the server runs but cannot resolve"},
			{Reason: "DNSOverTCPFailing", Severity: finding.Warning, When: "UDP is answered, TCP is not: answers " +
				"above 512 bytes are lost"},
			{Reason: "DNSOverUDPFailing", Severity: finding.Warning, When: "TCP is answered, UDP is not"},
			{Reason: "DNSResolverOnLoopback", Severity: finding.Info, When: "resolvConf names an address such as " +
				"127.0.0.53, which in each pod is the pod itself; a CoreDNS here queries itself and crashes"},
		},
		FalseAlarms: "A cluster without DNS whose kubelets have a clusterDNS address: remove the address, or disable " +
			"the check. Network policies of pods are not covered, since the queries come from the host.",
	}
}
