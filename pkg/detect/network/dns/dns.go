// Package dns checks the name servers of pods and of the node.
package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
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

// dnsServer is one server that pods use.
type dnsServer struct {
	Address  netip.Addr
	Upstream bool // of the node's resolvConf, not of the cluster
}

// dnsHistory is the state of a server between runs. Times are since boot.
type dnsHistory struct {
	silent   time.Duration // since when it has not answered; 0: it does
	tcpAsked time.Duration
	tcpErr   error
}

// serverResult is the outcome of one server's queries in one run.
type serverResult struct {
	Server  dnsServer
	Answer  dns.DNSAnswer
	Err     error // over UDP
	TCPErr  error // nil also if it was not queried
	TCP     bool  // an answer over TCP is known
	Silence time.Duration
}

type dnsCheck struct {
	settings Settings
	kubelet  checkkit.KubeletNetwork
	servers  map[dnsServer]*dnsHistory
}

func (c *dnsCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	network, err := c.kubelet.Get(h)
	if err != nil {
		return nil, err
	}
	servers, unknown := dnsServers(h.Files, network)
	if len(servers) == 0 && len(unknown) == 0 {
		return nil, finding.NotApplicable("kubelet has no name server for pods")
	}
	now := h.Clock().SinceBoot
	seen := c.query(ctx, servers, network.ClusterDomain, now)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("query the name servers of pods: %w", ctx.Err())
	}
	return c.evaluate(seen, network), finding.Partial(unknown)
}

// dnsServers lists the servers of pods.
func dnsServers(files host.Files, network discover.KubeletNetwork) (servers []dnsServer,
	unknown map[finding.Subject]error) {
	for _, address := range checkkit.ClusterServers(network) {
		servers = append(servers, dnsServer{Address: address})
	}
	upstream, err := upstreamServers(files, network)
	if err != nil {
		return servers, map[finding.Subject]error{{Kind: "file", Name: network.ResolvConf}: err}
	}
	for _, address := range upstream {
		if !slices.Contains(servers, dnsServer{Address: address}) {
			servers = append(servers, dnsServer{Address: address, Upstream: true})
		}
	}
	return servers, nil
}

// upstreamServers reads the resolvers that kubelet gives pods with dnsPolicy Default. Only a file that kubelet's
// configuration names must exist.
func upstreamServers(files host.Files, network discover.KubeletNetwork) ([]netip.Addr, error) {
	if network.ResolvConf == "" {
		return nil, nil
	}
	data, err := files.Read(network.ResolvConf)
	if errors.Is(err, fs.ErrNotExist) && network.ResolvConf == "/etc/resolv.conf" {
		return nil, nil
	}
	return parseNameservers(string(data)), err
}

// parseNameservers reads the first servers of a resolv.conf(5). Malformed lines are skipped, as libc does.
func parseNameservers(text string) []netip.Addr {
	var servers []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(servers) == checkkit.MaxNameservers {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil && !slices.Contains(servers, address) {
			servers = append(servers, address)
		}
	}
	return servers
}

// query queries all servers in parallel, so that a silent one costs its own time only.
func (c *dnsCheck) query(ctx context.Context, servers []dnsServer, domain string, now time.Duration) []serverResult {
	maps.DeleteFunc(c.servers, func(s dnsServer, _ *dnsHistory) bool { return !slices.Contains(servers, s) })
	for _, server := range servers {
		if c.servers[server] == nil {
			c.servers[server] = &dnsHistory{}
		}
	}
	seen := make([]serverResult, len(servers))
	var all sync.WaitGroup
	for i, server := range servers {
		all.Go(func() { seen[i] = c.queryOne(ctx, server, c.servers[server], domain, now) })
	}
	all.Wait()
	return seen
}

// queryOne queries one server. No other goroutine changes the server's history.
func (c *dnsCheck) queryOne(ctx context.Context, server dnsServer, history *dnsHistory, domain string,
	now time.Duration) serverResult {
	seen := serverResult{Server: server}
	query := c.newQuery(server, domain)
	for range 2 {
		if seen.Answer, seen.Err = c.try(ctx, query); seen.Err == nil || !checkkit.IsTimeout(seen.Err) {
			break
		}
	}
	if !server.Upstream && (seen.Err != nil || history.tcpErr != nil || history.tcpAsked == 0 ||
		now-history.tcpAsked >= dnsTCPEvery) {
		query.Protocol = "tcp"
		_, history.tcpErr = c.try(ctx, query)
		history.tcpAsked = now
	}
	seen.TCP, seen.TCPErr = history.tcpAsked != 0 && history.tcpErr == nil, history.tcpErr
	if seen.Err == nil || seen.TCP {
		history.silent = 0
		return seen
	}
	if history.silent == 0 {
		history.silent = now
	}
	seen.Silence = now - history.silent
	return seen
}

func (c *dnsCheck) newQuery(server dnsServer, domain string) dns.DNSQuestion {
	q := dns.DNSQuestion{
		Server: netip.AddrPortFrom(server.Address, 53), Protocol: "udp", Name: "localhost",
		IPv6: server.Address.Is6() && !server.Address.Is4In6(),
	}
	switch {
	case server.Upstream && c.settings.UpstreamName != "":
		q.Name, q.IPv6 = c.settings.UpstreamName, false
	case !server.Upstream:
		q.Name = "kubernetes.default.svc." + domain
	}
	return q
}

func (c *dnsCheck) try(ctx context.Context, query dns.DNSQuestion) (dns.DNSAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	return dns.AskDNS(ctx, query)
}
