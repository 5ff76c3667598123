package network

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
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
// Flag 0x08 (IFA_F_DADFAILED): before an address is used, the kernel asks whether anybody else has it, and somebody
// does. The address stays there and is not used. RFC 4862, https://docs.kernel.org/networking/ip-sysctl.html
// (accept_dad).
//
// Known false alarms: two ports of one card in the same segment, or a looped cable, answer each other; the address is
// unusable all the same. There is no such thing for IPv4 in the kernel's state: nobody asks, unless a DHCP client does.

const (
	duplicateAddressID = "ipv6-duplicate-address"
	dadFailed          = 0x08
)

// DuplicateAddress finds addresses of the node that another machine has.
func DuplicateAddress() detect.Check {
	return detect.Check{
		ID: duplicateAddressID, Domain: "network",
		Summary: "an IPv6 address of the node is in use by another machine, so that the node does not use it",
		Advice: "`ip -6 address show dadfailed` shows it, the kernel's log the other's hardware address. Take the " +
			"address away from one of them, then `ip address del` and `add` it here.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/if_inet6"},
			Why:   "What was told to use that address reaches the other machine.",
			Faults: []detect.Fault{{Reason: "DuplicateAddress", Severity: finding.Warning,
				When: "the kernel's search for duplicates found one"}},
			FalseAlarms: "A looped cable makes a machine its own duplicate.",
		},
		Every: 5 * time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{{Source: detect.WakeKernelLog, Match: "IPv6 duplicate address"},
			{Source: detect.WakeLinks}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			data, err := h.Files.Read("/proc/net/if_inet6")
			if errors.Is(err, fs.ErrNotExist) {
				return nil, finding.NotApplicable("the kernel has no IPv6")
			}
			if err != nil {
				return nil, err
			}
			failed, err := duplicateAddresses(string(data))
			if err != nil {
				return nil, fmt.Errorf("read /proc/net/if_inet6: %w", err)
			}
			var findings []finding.Finding
			for _, device := range slices.Sorted(maps.Keys(failed)) {
				findings = append(findings, finding.Finding{
					Check: duplicateAddressID, Subject: finding.Subject{Kind: kindNetDevice, Name: device},
					Severity: finding.Warning,
					Reason:   "DuplicateAddress", Message: fmt.Sprintf("%s: another machine uses %s", device,
						checkkit.JoinFirst(failed[device], 5)),
					Facts: map[string]string{"addresses": checkkit.JoinFirst(failed[device], 20)},
				})
			}
			return findings, nil
		},
	}
}

// duplicateAddresses returns the addresses that are not used, by device.
func duplicateAddresses(text string) (map[string][]string, error) {
	failed := map[string][]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 6 {
			return nil, fmt.Errorf("line %q: want 6 fields", checkkit.Sanitize(line, checkkit.MaxName))
		}
		raw, err := hex.DecodeString(fields[0])
		if err != nil || len(raw) != 16 {
			return nil, fmt.Errorf("line %q: bad address", checkkit.Sanitize(line, checkkit.MaxName))
		}
		flags, err := parseCount(fields[4], 16)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", checkkit.Sanitize(line, checkkit.MaxName), err)
		}
		if flags&dadFailed != 0 {
			device := checkkit.Sanitize(fields[5], checkkit.MaxName)
			failed[device] = append(failed[device], netip.AddrFrom16([16]byte(raw)).String())
		}
	}
	return failed, nil
}
