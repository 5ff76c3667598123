package network

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ipv6-duplicate-address reads /proc/net/if_inet6: address, index of the device, prefix length, scope, flags, device
//
//	fe8000000000000000fc00fffe000001 04 40 20 80     eth0
//
// Flag 0x08 (IFA_F_DADFAILED): before an address is used, the kernel asks whether another machine has it, and one
// answered. The address stays configured and is not used. RFC 4862, https://docs.kernel.org/networking/ip-sysctl.html
// (accept_dad). The kernel has no such state for IPv4.

const dadFailed = 0x08

// DuplicateAddress finds addresses of the node that another machine uses.
func DuplicateAddress() detect.Check {
	return detect.Check{
		ID: "ipv6-duplicate-address", Domain: "network",
		Summary: "another machine uses an IPv6 address of the node, so the node does not use it",
		Advice: "List the address with `ip -6 address show dadfailed`; the kernel's log names the hardware address " +
			"of the other machine. Remove the address from one of them, then run `ip address del` and `ip address " +
			"add` here.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/if_inet6"},
			Why:   "Traffic for that address reaches the other machine.",
			Faults: []detect.Fault{{Reason: "DuplicateAddress", Severity: finding.Warning,
				When: "the kernel's duplicate address detection found one"}},
			FalseAlarms: "A looped cable, or two ports of one card in the same segment, make a machine its own " +
				"duplicate; the address is unusable all the same.",
		},
		Every: 5 * time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.LogWake("IPv6 duplicate address"), {Source: detect.WakeLinks}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			failed, err := checkkit.Parse(h.Files, "/proc/net/if_inet6", duplicateAddresses)
			if err != nil {
				return nil, checkkit.UnlessAbsent(err, "the kernel has no IPv6")
			}
			var findings []finding.Finding
			for _, device := range slices.Sorted(maps.Keys(failed)) {
				findings = append(findings, finding.Finding{
					Subject: finding.Subject{Kind: kindNetDevice, Name: device}, Severity: finding.Warning,
					Reason: "DuplicateAddress", Message: fmt.Sprintf("%s: another machine uses %s", device,
						finding.JoinFirst(failed[device], 5)),
					Facts: map[string]string{"addresses": finding.JoinFirst(failed[device], 20)},
				})
			}
			return findings, nil
		},
	}
}

// duplicateAddresses returns the addresses whose detection failed, by device.
func duplicateAddresses(text string) (map[string][]string, error) {
	failed := map[string][]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 6 {
			return nil, checkkit.InLine(line, errors.New("want 6 fields"))
		}
		raw, err := hex.DecodeString(fields[0])
		if err != nil || len(raw) != 16 {
			return nil, checkkit.InLine(line, errors.New("bad address"))
		}
		flags, err := parseCount(fields[4], 16)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		if flags&dadFailed != 0 {
			device := checkkit.Sanitize(fields[5], checkkit.MaxName)
			failed[device] = append(failed[device], netip.AddrFrom16([16]byte(raw)).String())
		}
	}
	return failed, nil
}
