// Package apiserverreachability checks whether the apiserver answers at each address that the node has for it.
package apiserverreachability

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
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

// apiserverCheck is the state between runs. All times are since boot; zero: never.
type apiserverCheck struct {
	settings Settings

	kubelet   checkkit.KubeletNetwork
	endpoint  string           // host:port
	addresses []netip.AddrPort // of it
	resolved  time.Duration
	asked     time.Duration // of the last GET /livez
	fault     *finding.Finding

	service         netip.Addr // of kubernetes.default; not valid: not known
	serviceResolved time.Duration
	serviceTried    time.Duration
	serviceErr      error
}

func (c *apiserverCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Cluster.Endpoint == nil || h.Cluster.Reach == nil {
		return nil, finding.NotApplicable("no Kubernetes on this host")
	}
	endpoint, err := h.Cluster.Endpoint()
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, finding.NotApplicable("nothing on this host names the apiserver")
	}
	if err != nil {
		return nil, fmt.Errorf("where the apiserver is: %w", err)
	}
	if endpoint != c.endpoint {
		c.endpoint, c.addresses, c.resolved, c.asked, c.fault = endpoint, nil, 0, 0, nil
	}
	now := h.Clock().SinceBoot
	if err := c.askEndpoint(ctx, h, now); err != nil {
		return nil, err
	}
	service := finding.Subject{Kind: "service", Name: "default/kubernetes"}
	if c.fault != nil {
		return []finding.Finding{*c.fault},
			finding.Partial(map[finding.Subject]error{service: errors.New(c.fault.Message)})
	}
	c.tryService(ctx, h, now)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("connect to the service kubernetes.default: %w", ctx.Err())
	}
	if c.serviceErr == nil {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: service, Severity: finding.Warning, Reason: "APIServerServiceUnreachable",
		Message: fmt.Sprintf("the apiserver answers at %s, but its service address %s is unreachable on this node "+
			"(%s): check kube-proxy or the network plugin", c.endpoint, c.serviceAddress(),
			checkkit.ErrorText(c.serviceErr)),
		Facts: map[string]string{"address": c.serviceAddress().String(), "endpoint": c.endpoint},
	}}, nil
}

// askEndpoint asks the cheapest source that can tell, and keeps the fault.
func (c *apiserverCheck) askEndpoint(ctx context.Context, h *host.Host, now time.Duration) error {
	if h.Cluster.Answered != nil {
		if ago, ever := h.Cluster.Answered(); ever && ago < apiserverOwnAnswer {
			c.fault = nil
			return nil
		}
	}
	c.resolve(ctx, now)
	ago, received, err := network.LastReceived(h, c.addresses)
	if err == nil && received && ago < apiserverRecent {
		c.fault = nil
		return nil
	}
	blind := err != nil || len(c.addresses) == 0 // then the absence of a connection is no evidence
	if blind && c.fault == nil && c.asked != 0 && now-c.asked < apiserverAskEvery {
		return nil // it answered then
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	status, err := h.Cluster.Reach(call)
	if ctx.Err() != nil {
		return fmt.Errorf("ask the apiserver at %s: %w", c.endpoint, ctx.Err())
	}
	c.asked = now
	c.fault = evaluateReach(c.endpoint, status, err)
	return nil
}

// resolve updates the addresses of the endpoint. If it cannot be resolved, the known ones stay.
func (c *apiserverCheck) resolve(ctx context.Context, now time.Duration) {
	if c.resolved != 0 && now-c.resolved < apiserverResolveEvery {
		return
	}
	name, port, err := net.SplitHostPort(c.endpoint)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	addresses, err := cri.LookupAddresses(call, name)
	c.resolved = now
	if err != nil {
		return
	}
	c.addresses = c.addresses[:0]
	for _, address := range addresses[:min(len(addresses), maxDNSNames)] {
		c.addresses = append(c.addresses, netip.AddrPortFrom(address, uint16(number)))
	}
}

// maxDNSNames bounds the addresses of one name.
const maxDNSNames = 64

func (c *apiserverCheck) serviceAddress() netip.AddrPort { return netip.AddrPortFrom(c.service, 443) }

// tryService connects to the service address every few minutes, and in every run while that fails.
func (c *apiserverCheck) tryService(ctx context.Context, h *host.Host, now time.Duration) {
	if c.serviceErr == nil && c.serviceTried != 0 && now-c.serviceTried < serviceTryEvery {
		return
	}
	c.findService(ctx, h, now)
	if !c.service.IsValid() {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	c.serviceTried = now
	c.serviceErr = cri.ConnectTCP(call, c.serviceAddress())
}

// findService asks the cluster's name server for the address of the service. The check dns covers that server.
func (c *apiserverCheck) findService(ctx context.Context, h *host.Host, now time.Duration) {
	every := serviceResolveEvery
	if !c.service.IsValid() {
		every = serviceTryEvery
	}
	if c.serviceResolved != 0 && now-c.serviceResolved < every {
		return
	}
	network, err := c.kubelet.Get(h)
	if err != nil || len(network.ClusterDNS) == 0 || network.ClusterDomain == "" {
		return
	}
	server, err := netip.ParseAddr(network.ClusterDNS[0])
	if err != nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	c.serviceResolved = now
	answer, err := dns.AskDNS(call, dns.DNSQuestion{
		Server: netip.AddrPortFrom(server, 53), Protocol: "udp", Name: "kubernetes.default.svc." +
			network.ClusterDomain, IPv6: server.Is6(),
	})
	if err == nil && len(answer.Addresses) > 0 {
		c.service = answer.Addresses[0]
	}
}

// evaluateReach returns the fault that the apiserver's answer shows, or nil.
func evaluateReach(endpoint string, status int, err error) *finding.Finding {
	fault := func(reason, format string, args ...any) *finding.Finding {
		return &finding.Finding{
			Subject: finding.Subject{Kind: "apiserver", Name: endpoint}, Severity: finding.Warning,
			Reason: reason, Message: fmt.Sprintf("the apiserver at %s ", endpoint) + fmt.Sprintf(format, args...),
			Facts: map[string]string{"status": strconv.Itoa(status)},
		}
	}
	if err == nil {
		if status < http.StatusInternalServerError {
			return nil
		}
		return fault("APIServerFailing",
			"answers /livez with status %d: it, or the load balancer in front of it, is not healthy", status)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return fault("APIServerNameUnknown", "cannot be resolved by this node: %s", checkkit.Sanitize(err.Error(), 200))
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault("APIServerCertificateInvalid",
			"presents a certificate that kubelet's kubeconfig does not trust: %s", checkkit.Sanitize(err.Error(), 300))
	}
	return fault("APIServerUnreachable",
		"cannot be reached from this node: %s; try from another node to find out which side is at fault",
		checkkit.ErrorText(err))
}
