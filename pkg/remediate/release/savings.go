package release

import (
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Savings is what a release returned to the node: only objects verified to be gone count, whether the release or their
// owner removed them. Unknown sizes are counted separately, never guessed. Its JSON form is a contract.
type Savings struct {
	Objects          int    `json:"objects"`          // of every kind
	Bytes            uint64 `json:"bytes"`            // of files with a size known beforehand
	BytesUnknown     int    `json:"bytesUnknown"`     // objects that used an unmeasured amount of disk space
	Processes        int    `json:"processes"`        // including shims
	Addresses        int    `json:"addresses"`        // freed in host-local
	AddressesUnknown int    `json:"addressesUnknown"` // attachments with addresses managed by another plugin
	Leases           int    `json:"leases"`           // containerd's
	Mounts           int    `json:"mounts"`
	Cgroups          int    `json:"cgroups"`
}

// Savings adds up the resources of the steps' objects verified to be gone. It is pure.
func (o Outcome) Savings() Savings {
	var g Savings
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

// isGone reports whether an object was verified to be gone. A zombie held no resources before.
func (s StepOutcome) isGone() bool {
	return (s.Result == Released || s.Result == Vanished) && !s.Object.IsDead()
}

func (g *Savings) add(o object.Assessment, addresses map[string]bool) {
	g.Objects++
	switch o.Kind {
	case object.Process, object.Shim:
		g.Processes++
	case object.Mount:
		g.Mounts++
	case object.Rootfs:
		mounts, _ := strconv.Atoi(o.Facts["mounts"]) // absent: not known to have been mounted
		g.Mounts += mounts
	case object.Cgroup:
		g.Cgroups++
	case object.Lease:
		g.Leases++
	case object.IPAMLease:
		addresses[o.Facts["address"]] = true
	case object.CNIAttachment:
		if o.Facts["leaseDirectories"] == "" {
			g.AddressesUnknown++
			break
		}
		for cidr := range strings.FieldsSeq(o.Facts["addresses"]) {
			address, _, _ := strings.Cut(cidr, "/")
			addresses[address] = true
		}
	case object.PodLogs, object.PodDirectory, object.SandboxDirectory, object.Sandbox, object.Container,
		object.ContainerdContainer:
		bytes, err := strconv.ParseUint(o.Facts["bytes"], 10, 64)
		if err != nil {
			g.BytesUnknown++
			break
		}
		g.Bytes = mutate.AddBytes(g.Bytes, bytes)
	}
}
