package network

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// default-route reads /proc/net/route (the main table, IPv4) and /proc/net/ipv6_route (all tables, IPv6); see
// network_routes.go for their formats. If there is none, it asks the kernel for its route to an address that only a
// default route can reach: one of the networks reserved for documentation (RFC 5737, RFC 3849). That is a connect(2) of
// a datagram socket, which sends no packet and honours policy routing, VRFs and split routes (0.0.0.0/1 and
// 128.0.0.0/1).
//
// https://docs.kernel.org/networking/ip-sysctl.html, proc_net(5), ip-rule(8).
//
// Isolated nodes and nodes that learn all routes by BGP never have a default route: only the loss of one is a fault. A
// DHCP client may remove it for a moment while it renews its lease.

const (
	routeChangedFor = time.Hour          // how long a change is reported
	routeForget     = 7 * 24 * time.Hour // how long the loss of a route is reported; then its absence is normal
)

// DefaultRoute finds nodes that lost their default route. The store may be nil: then routes from before the agent's
// start are not known.
func DefaultRoute(store detect.StateStore) detect.Check {
	c := &routeCheck{saved: detect.Saved[routeHistory]{Store: store, Key: routeHistoryKey}}
	c.history = loadRouteHistory(c.saved)
	return detect.Check{
		ID: "default-route", Domain: "network",
		Summary: "the node lost its default route, or it changed",
		Advice: "Show the routes with `ip route; ip -6 route; ip rule`. Check what configures them: `networkctl " +
			"status`, `nmcli device`, `journalctl -u systemd-networkd -u NetworkManager`, the DHCP server or the " +
			"router advertisements.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/route", "/proc/net/ipv6_route",
				"the kernel's route to a documentation address, without sending anything, only if both have no " +
					"default route"},
			Why: "Without it the node reaches the apiserver, registries and other nodes only within its own segment.",
			Faults: []detect.Fault{
				{Reason: "DefaultRouteLost", Severity: finding.Fatal, When: "the node had a default route, has none " +
					"now in either family, and the kernel has no other route out, in two runs over 20 s. A warning " +
					"if only one of two families lost its route"},
				{Reason: "DefaultRouteChanged", Severity: finding.Info, When: "it leads through another device, or " +
					"(IPv4) to another gateway; reported for an hour"},
				{Reason: "DefaultRouteMissing", Severity: finding.Info,
					When: "there is none and there was none before: normal for an isolated node"},
			},
			FalseAlarms: "Nodes that never had a default route are not faulty. One that was removed on purpose is " +
				"reported for a week.",
		},
		Condition: detect.NetworkProblem(),
		Every:     time.Minute, Deadline: 8 * time.Second,
		Wakes:  []detect.Wake{{Source: detect.WakeLinks}},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 20 * time.Second}},
		Run:    c.observe,
	}
}

type routeCheck struct {
	saved   detect.Saved[routeHistory]
	history routeHistory
}

func (c *routeCheck) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	four, six, err := readDefaultRoutes(h.Files)
	if err != nil {
		return nil, err
	}
	now := h.Clock()
	families := []*routeFamily{&c.history.IPv4, &c.history.IPv6}
	changed := false
	for i, routes := range [][]defaultRoute{four, six} {
		other := false
		if len(routes) == 0 && families[i].Way != "" {
			if other, err = otherRoute(h.Network, i == 0); err != nil {
				return nil, err
			}
		}
		changed = families[i].add(routes, i == 0, other, now) || changed
	}
	if changed {
		c.saved.Save(c.history)
	}
	f, found := c.evaluate(len(four) > 0 || families[0].other, len(six) > 0 || families[1].other, now)
	if !found {
		return nil, nil
	}
	f.Subject = checkkit.NodeSubject(h)
	return []finding.Finding{f}, nil
}

// otherRoute reports whether the kernel has a route out other than a default route of the main table.
func otherRoute(network host.Network, ipv4 bool) (bool, error) {
	if network.Route == nil {
		return false, nil
	}
	outside := netip.MustParseAddr("2001:db8::1")
	if ipv4 {
		outside = netip.AddrFrom4([4]byte{203, 0, 113, 1})
	}
	err := network.Route(outside)
	if err != nil && !noRoute(err) {
		return false, err
	}
	return err == nil, nil
}

// noRoute reports whether the kernel has no usable route: none at all, one that refuses (unreachable, prohibit,
// blackhole), or no source address to use it with.
func noRoute(err error) bool {
	errnos := []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EACCES, syscall.EINVAL,
		syscall.EADDRNOTAVAIL, syscall.ENETDOWN, syscall.EAFNOSUPPORT}
	return slices.ContainsFunc(errnos, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

func (c *routeCheck) evaluate(have4, have6 bool, now finding.Timestamp) (finding.Finding, bool) {
	p := &c.history
	lost4, lost6 := !have4 && p.IPv4.Way != "", !have6 && p.IPv6.Way != ""
	was := cmp.Or(p.IPv4.Way, p.IPv6.Way)
	if p.IPv4.Way != "" && p.IPv6.Way != "" {
		was += " and " + p.IPv6.Way
	}
	switch {
	case !have4 && !have6 && (lost4 || lost6):
		return finding.Finding{
			Severity: finding.Fatal, Reason: "DefaultRouteLost", Facts: map[string]string{"was": was},
			Message: "the node has lost its default route and has no other route out; it was " + was,
		}, true
	case lost4 || lost6:
		family, way := "IPv4", p.IPv4.Way
		if lost6 {
			family, way = "IPv6", p.IPv6.Way
		}
		return finding.Finding{
			Severity: finding.Warning, Reason: "DefaultRouteLost", Facts: map[string]string{"was": way,
				"family": family},
			Message: fmt.Sprintf("the node has lost its default route for %s; it was %s", family, way),
		}, true
	case !have4 && !have6:
		return finding.Finding{
			Severity: finding.Info, Reason: "DefaultRouteMissing",
			Message: "the node has no default route, and had none before",
		}, true
	}
	for _, family := range []*routeFamily{&p.IPv4, &p.IPv6} {
		if family.Before != "" && now.Boot == family.boot && now.SinceBoot-family.changedAt < routeChangedFor {
			return finding.Finding{
				Severity: finding.Info, Reason: "DefaultRouteChanged", Facts: map[string]string{"was": family.Before,
					"is": family.Way},
				Message: fmt.Sprintf("the default route changed from %s to %s", family.Before, family.Way),
			}, true
		}
	}
	return finding.Finding{}, false
}

const routeHistoryKey = "default-route/ways"

// routeHistory records the default routes that the node had. It survives a restart of the agent and of the node.
type routeHistory struct {
	IPv4 routeFamily `json:"ipv4"`
	IPv6 routeFamily `json:"ipv6"`
}

// routeFamily is the default route of one family.
type routeFamily struct {
	Way    string        `json:"way,omitempty"`    // the best default route, as last seen; empty: never seen
	Absent time.Duration `json:"absent,omitempty"` // total time for which it has been seen to be absent

	Before    string        `json:"-"` // the way before the change
	boot      string        // of the change
	changedAt time.Duration // since boot
	observed  time.Duration // since boot, of the last run; 0 for none
	other     bool          // another route leads out, but no default route
}

func loadRouteHistory(saved detect.Saved[routeHistory]) routeHistory {
	h, _ := saved.Load(func(routeHistory) bool { return true })
	h.IPv4.Way = checkkit.Sanitize(h.IPv4.Way, checkkit.MaxName)
	h.IPv6.Way = checkkit.Sanitize(h.IPv6.Way, checkkit.MaxName)
	return h
}

// add records the present routes, and reports whether there is a change to save.
func (f *routeFamily) add(routes []defaultRoute, ipv4, other bool, now finding.Timestamp) (changed bool) {
	since := now.SinceBoot - f.observed
	first := f.observed == 0
	f.observed, f.other = now.SinceBoot, other
	if len(routes) == 0 {
		if f.Way == "" || other || first {
			return false
		}
		before := f.Absent
		f.Absent += min(max(since, 0), 10*time.Minute) // runs that did not happen prove nothing
		if f.Absent >= routeForget {
			*f = routeFamily{observed: f.observed}
			return true
		}
		return before.Truncate(time.Hour) != f.Absent.Truncate(time.Hour)
	}
	changed = f.Absent != 0
	f.Absent = 0
	for _, r := range routes {
		if wayOf(r, ipv4) == f.Way {
			return changed // still there, although perhaps no longer the best
		}
	}
	if f.Way != "" {
		f.Before, f.boot, f.changedAt = f.Way, now.Boot, now.SinceBoot
	}
	f.Way = wayOf(routes[0], ipv4)
	return true
}

// wayOf renders a route for people, without IPv6 gateways: these are link-local and change with the router's card.
func wayOf(r defaultRoute, ipv4 bool) string {
	device := "dev " + checkkit.Sanitize(r.device, checkkit.MaxName)
	if !ipv4 {
		return "IPv6 " + device
	}
	raw, err := hex.DecodeString(r.gateway)
	if err != nil || len(raw) != 4 || r.gateway == "00000000" {
		return device
	}
	// The kernel prints the number in the byte order of the machine, although it is stored in network byte order.
	var gateway [4]byte
	binary.NativeEndian.PutUint32(gateway[:], binary.BigEndian.Uint32(raw))
	return "via " + netip.AddrFrom4(gateway).String() + " " + device
}
