package netlink

import (
	"net/netip"
)

// NetworkDevice is one network device of this network namespace.
type NetworkDevice struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// as in "ip -d link": device, veth, bridge, vxlan, geneve, ipip, wireguard …
	Kind string `json:"kind"`
	MTU  int    `json:"mtu"` // bytes
	// index of the device used by a tunnel or VLAN; 0: none, or not fixed
	Lower     int  `json:"lower,omitempty"`
	Master    int  `json:"master,omitempty"` // index of its bridge or bond; 0: none
	Up        bool `json:"up,omitempty"`
	Elsewhere bool `json:"elsewhere,omitempty"` // the other end of the veth is in another network namespace
	// a tunnel whose peers are chosen for each packet (collect metadata)
	External  bool           `json:"external,omitempty"`
	IPv6      bool           `json:"ipv6,omitempty"`      // a tunnel that sends over IPv6
	Addresses []netip.Prefix `json:"addresses,omitempty"` // with the length of their network
}

// DefaultRoute is one default route. Gateway may be invalid; the smallest metric wins.
type DefaultRoute struct {
	Device  int        `json:"device"`
	Gateway netip.Addr `json:"gateway,omitzero"`
	Metric  int        `json:"metric,omitempty"`
	IPv6    bool       `json:"ipv6,omitempty"`
}

// NetworkLayout describes how this network namespace is connected.
type NetworkLayout struct {
	Devices  []NetworkDevice `json:"devices"`
	Defaults []DefaultRoute  `json:"defaults,omitempty"` // of the main routing table
}

// Device returns the device with an index.
func (l NetworkLayout) Device(index int) (NetworkDevice, bool) {
	for _, d := range l.Devices {
		if d.Index == index {
			return d, true
		}
	}
	return NetworkDevice{}, false
}
