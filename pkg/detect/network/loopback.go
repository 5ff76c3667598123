package network

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// loopback reads /sys/class/net/lo/flags (0x9: IFF_UP and IFF_LOOPBACK) and asks for the route to 127.0.0.1 by a
// connect(2) of a datagram socket: it sends no packet, and fails (ENETUNREACH, EINVAL) if the address is not
// configured. /proc/net has no cheap list of IPv4 addresses.
//
// https://docs.kernel.org/networking/operstates.html, ip(7).

// Loopback finds nodes that cannot connect to themselves.
func Loopback() detect.Check {
	return detect.Check{
		ID: "loopback", Domain: "network",
		Summary: "the loopback device is down or has lost its address: the node cannot connect to itself",
		Advice: "Run `ip link set lo up; ip address add 127.0.0.1/8 dev lo`, then find out what took it down: check " +
			"`journalctl -k` and the network configuration.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/net/lo/flags", "the kernel's route to 127.0.0.1, without sending anything"},
			Why: "kubelet's health endpoint, local load balancers in front of the apiserver, node-local name " +
				"servers and most sidecars listen on 127.0.0.1.",
			Faults: []detect.Fault{
				{Reason: "LoopbackDown", Severity: finding.Fatal, When: "lo is absent or not up, for 10 s"},
				{Reason: "LoopbackWithoutAddress", Severity: finding.Fatal,
					When: "lo is up but the kernel has no route to 127.0.0.1, for 10 s"},
			},
			FalseAlarms: "None known: a restart of the network that flushes all addresses takes less than 10 s. ::1 " +
				"is not checked, since it is disabled on many nodes.",
		},
		Condition: detect.NetworkProblem(),
		Every:     30 * time.Second, Deadline: 5 * time.Second,
		Wakes:  []detect.Wake{{Source: detect.WakeLinks}},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 10 * time.Second}},
		Run:    observeLoopback,
	}
}

func observeLoopback(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	if _, err := h.Files.List(sysClassNet); err != nil {
		return nil, err
	}
	lo := networkCard{name: "lo", dir: sysClassNet + "/lo"}
	found := func(reason, message string) ([]finding.Finding, error) {
		return []finding.Finding{{
			Subject: finding.Subject{Kind: kindNetDevice, Name: lo.name}, Severity: finding.Fatal,
			Reason: reason, Message: message,
		}}, nil
	}
	switch err := lo.read(h.Files); {
	case errors.Is(err, fs.ErrNotExist):
		return found("LoopbackDown", "there is no device lo")
	case err != nil:
		return nil, err
	case !lo.adminUp:
		return found("LoopbackDown", "lo is not up")
	}
	if h.Network.Route == nil {
		return nil, nil
	}
	if err := h.Network.Route(netip.AddrFrom4([4]byte{127, 0, 0, 1})); err != nil {
		if !noRoute(err) {
			return nil, err
		}
		return found("LoopbackWithoutAddress", "the kernel has no route to 127.0.0.1: "+err.Error())
	}
	return nil, nil
}
