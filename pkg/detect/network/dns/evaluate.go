package dns

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// evaluate returns the faults of the servers.
func (c *dnsCheck) evaluate(seen []serverResult, network discover.KubeletNetwork) []finding.Finding {
	alone := c.isolated(seen)
	var found []finding.Finding
	for _, s := range seen {
		reason, message := s.fault(c.settings, network)
		if reason == "" {
			continue
		}
		severity := finding.Warning
		if reason == "DNSResolverOnLoopback" {
			severity = finding.Info
		}
		if s.Silence >= c.settings.FatalAfter && c.settings.FatalAfter > 0 && s.Err != nil &&
			(alone || s.onThisNode()) {
			severity = finding.Fatal
		}
		found = append(found, finding.Finding{
			Subject: finding.Subject{Kind: "dns-server", Name: s.Server.Address.String()}, Severity: severity,
			Reason: reason, Message: message, Facts: s.facts(),
		})
	}
	return found
}

// isolated reports whether no server of the cluster or the node answers: all they share is this node. A refusal is an
// answer of some host on the way, and the silence counts from when the last of them fell silent.
func (c *dnsCheck) isolated(seen []serverResult) bool {
	kinds := map[bool]bool{}
	for _, s := range seen {
		if s.Server.Upstream && s.Server.Address.IsLoopback() {
			continue // a stub on this machine: it answers from its cache
		}
		if s.Err == nil || s.TCP || errors.Is(s.Err, syscall.ECONNREFUSED) || s.Silence < c.settings.FatalAfter {
			return false
		}
		kinds[s.Server.Upstream] = true
	}
	return len(kinds) == 2
}

// onThisNode reports whether the server is this node's own: NodeLocal DNSCache listens on a link-local address.
func (s serverResult) onThisNode() bool {
	return !s.Server.Upstream && (s.Server.Address.IsLinkLocalUnicast() || s.Server.Address.IsLoopback())
}

// fault names the fault of one server; no reason: none.
func (s serverResult) fault(settings Settings, network discover.KubeletNetwork) (reason, message string) {
	who := s.describe(network)
	switch {
	case s.Server.Upstream && s.Server.Address.IsLoopback():
		return "DNSResolverOnLoopback", fmt.Sprintf("%s is used by pods with dnsPolicy Default, for which that "+
			"address is the pod itself: point kubelet's resolvConf to a file with the real servers (with "+
			"systemd-resolved: /run/systemd/resolve/resolv.conf)", who)
	case s.Err != nil && s.TCP:
		return "DNSOverUDPFailing", fmt.Sprintf("%s answers over TCP, but not over UDP: %s", who,
			checkkit.ErrorText(s.Err))
	case s.Err != nil && errors.Is(s.Err, syscall.ECONNREFUSED):
		return "DNSPortRefused", fmt.Sprintf("%s: no process listens behind the address: its service has no ready "+
			"pod, or its process has exited", who)
	case s.Err != nil && checkkit.IsTimeout(s.Err):
		return "DNSNotAnswering",
			fmt.Sprintf("%s does not answer two attempts of %s; check whether it answers other nodes",
				who, settings.Timeout)
	case errors.As(s.Err, new(syscall.Errno)): // the kernel refused to send
		return "DNSUnreachable", fmt.Sprintf("%s cannot be reached from this node: %s", who, checkkit.ErrorText(s.Err))
	case s.Err != nil:
		return "DNSServerFailing", fmt.Sprintf("%s sent a malformed answer: %s", who, checkkit.ErrorText(s.Err))
	}
	must := !s.Server.Upstream && network.ClusterDomain != "" || s.Server.Upstream && settings.UpstreamName != ""
	switch {
	case must && s.Answer.RCode == "NXDOMAIN":
		return "DNSNameMissing",
			fmt.Sprintf("%s does not know %s: it belongs to another cluster, or clusterDomain is wrong", who,
				s.name(settings, network))
	case (must || !s.Server.Upstream) && !slices.Contains([]string{"NOERROR", "NXDOMAIN"}, s.Answer.RCode):
		return "DNSServerFailing",
			fmt.Sprintf("%s answers %s to a query for %s: it runs, but cannot resolve", who, s.Answer.RCode,
				s.name(settings, network))
	case s.TCPErr != nil:
		return "DNSOverTCPFailing",
			fmt.Sprintf("%s answers over UDP, but not over TCP, so that long answers are lost: %s", who,
				checkkit.ErrorText(s.TCPErr))
	}
	return "", ""
}

func (s serverResult) name(settings Settings, network discover.KubeletNetwork) string {
	if s.Server.Upstream {
		return checkkit.Sanitize(settings.UpstreamName, 100)
	}
	return "kubernetes.default.svc." + checkkit.Sanitize(network.ClusterDomain, 100)
}

func (s serverResult) describe(network discover.KubeletNetwork) string {
	if s.Server.Upstream {
		return fmt.Sprintf("the resolver %s of %s", s.Server.Address, checkkit.Sanitize(network.ResolvConf, 200))
	}
	return fmt.Sprintf("the cluster's name server %s", s.Server.Address)
}

func (s serverResult) facts() map[string]string {
	facts := map[string]string{"role": "cluster", "silentSeconds": strconv.Itoa(int(s.Silence.Seconds()))}
	if s.Server.Upstream {
		facts["role"] = "resolver"
	}
	if s.Answer.RCode != "" {
		facts["rcode"] = s.Answer.RCode
	}
	return facts
}
