package network

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
