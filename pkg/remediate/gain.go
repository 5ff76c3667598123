package remediate

import (
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Gain is what a node has again after a release: only of objects that were verified to be gone, whether the release or
// their owner removed them. What is not known is counted beside it, never guessed. Its JSON form is a contract.
type Gain struct {
	Objects          int    `json:"objects"`          // of every kind
	Bytes            uint64 `json:"bytes"`            // of files whose size was known before
	BytesUnknown     int    `json:"bytesUnknown"`     // objects that took space on a disk, nobody has measured how much
	Processes        int    `json:"processes"`        // with those of shims
	Addresses        int    `json:"addresses"`        // that host-local no longer holds
	AddressesUnknown int    `json:"addressesUnknown"` // attachments whose addresses another plugin keeps the books of
	Leases           int    `json:"leases"`           // containerd's
	Mounts           int    `json:"mounts"`
	Cgroups          int    `json:"cgroups"`
}

// Gain adds up what the steps held before and what was verified to be gone. It is pure.
func (o Outcome) Gain() Gain {
	var g Gain
	addresses := map[string]bool{} // an address is in its lease and in its attachment
	for _, pod := range o.Pods {
		for _, step := range pod.Steps {
			if step.isGone() {
				g.add(step.Object, addresses)
			}
		}
	}
	g.Addresses = len(addresses)
	return g
}

// isGone reports whether an object was verified to be gone. A dead process that nobody has reaped held nothing before.
func (s StepOutcome) isGone() bool {
	return (s.Result == Released || s.Result == Vanished) && !isDead(s.Object)
}

func (g *Gain) add(o inspect.Assessment, addresses map[string]bool) {
	g.Objects++
	switch o.Kind {
	case inspect.Process, inspect.Shim:
		g.Processes++
	case inspect.Mount:
		g.Mounts++
	case inspect.Rootfs:
		mounts, _ := strconv.Atoi(o.Facts["mounts"]) // none: not known to have been mounted
		g.Mounts += mounts
	case inspect.Cgroup:
		g.Cgroups++
	case inspect.Lease:
		g.Leases++
	case inspect.IPAMLease:
		addresses[o.Facts["address"]] = true
	case inspect.CNIAttachment:
		if o.Facts["leaseDirectories"] == "" {
			g.AddressesUnknown++
			break
		}
		for cidr := range strings.FieldsSeq(o.Facts["addresses"]) {
			address, _, _ := strings.Cut(cidr, "/")
			addresses[address] = true
		}
	case inspect.PodLogs, inspect.PodDirectory, inspect.SandboxDirectory, inspect.Sandbox, inspect.Container,
		inspect.ContainerdContainer:
		bytes, err := strconv.ParseUint(o.Facts["bytes"], 10, 64)
		if err != nil {
			g.BytesUnknown++
			break
		}
		g.Bytes = mutate.AddBytes(g.Bytes, bytes)
	}
}
