package kubelethealth

import (
	"net/netip"
	"net/url"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// portOwner is the kubelet process that provably holds the healthz port: once bound, the port belongs to the process
// for life, so this is read once for each kubelet. (A kubelet that finds its port taken goes on without it and tries
// again every 5 s.)
type portOwner struct {
	pid   int
	start uint64

	verified finding.Timestamp // when a connection last showed whether requests reach kubelet
}

// due reports whether a connection must show that again, although kubelet seems well.
func (o *portOwner) due(now finding.Timestamp) bool {
	return o.verified.IsZero() || now.Since(o.verified) >= verifyEvery
}

// impostor reports whether it is proven that another process than kubelet listens at the address that answered. A
// failed read is no evidence.
func (o *portOwner) impostor(h *host.Host, kubelet host.Process, healthz string, answered bool) bool {
	if !answered || o.pid == kubelet.PID && o.start == kubelet.StartTime {
		return false
	}
	address, err := netip.ParseAddrPort(addressOf(healthz))
	if err != nil {
		return false
	}
	all, err := socket.OfTCP(h, kubelet.PID)
	if err != nil {
		return false
	}
	listening := slices.DeleteFunc(all, func(s socket.TCP) bool { return !s.Listens || s.Local.Port() != address.Port() })
	held, err := socket.Held(h, kubelet.PID)
	if err != nil || len(listening) == 0 {
		return false
	}
	holds := slices.ContainsFunc(listening, func(s socket.TCP) bool { return held[s.Inode] })
	if holds {
		o.pid, o.start = kubelet.PID, kubelet.StartTime
	}
	return !holds
}

// addressOf returns the host and port of a URL.
func addressOf(healthz string) string {
	address, err := url.Parse(healthz)
	if err != nil {
		return ""
	}
	return address.Host
}
