package checktest

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// FixtureNetwork answers from a file for the kernel's network stack:
//
//	{"routes": ["127.0.0.1"], "ports": {"local": "10.0.0.5", "peer": "10.0.0.9:443", "count": 28000}}
//
// Only the named routes exist. Sockets are counted only if the file has their number.
func FixtureNetwork(t *testing.T, h *host.Host, file txtar.File) {
	var answers struct {
		Routes []netip.Addr `json:"routes"`
		Refuse int          `json:"refuse"` // errno for the others; ENETUNREACH unless set
		Ports  *struct {
			Local netip.Addr     `json:"local"`
			Peer  netip.AddrPort `json:"peer"`
			Count int            `json:"count"`
		} `json:"ports"`
	}
	strictJSON(t, file, &answers)
	h.Network = host.Network{
		Route: func(to netip.Addr) error {
			for _, known := range answers.Routes {
				if known == to {
					return nil
				}
			}
			if answers.Refuse != 0 {
				return fmt.Errorf("route to %s: %w", to, syscall.Errno(answers.Refuse))
			}
			return fmt.Errorf("route to %s: %w", to, syscall.ENETUNREACH)
		},
		BusiestPorts: func(context.Context, uint16, uint16) (netlink.PortUse, error) {
			if answers.Ports == nil {
				t.Error("sockets were counted without a reason")
				return netlink.PortUse{}, nil
			}
			return netlink.PortUse{Local: answers.Ports.Local, Peer: answers.Ports.Peer, Count: answers.Ports.Count},
				nil
		},
	}
}
