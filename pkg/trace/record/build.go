package record

import "hash/fnv"

// Build is the software responsible for the pods of a node, and the pool of the node. An unknown part is empty.
type Build struct {
	Pool      string `json:"pool,omitempty"`
	Kubelet   string `json:"kubelet,omitempty"`
	Runtime   string `json:"runtime,omitempty"`
	System    string `json:"system,omitempty"`  // OS image and kernel
	Network   string `json:"network,omitempty"` // images of the DaemonSets that set up networks
	Storage   string `json:"storage,omitempty"` // and of CSI drivers
	Scheduler string `json:"scheduler,omitempty"`
	Apiserver string `json:"apiserver,omitempty"`
}

// ID returns the number under which the build is stored.
func (b Build) ID() int64 {
	h := fnv.New64a()
	for _, s := range []string{b.Pool, b.Kubelet, b.Runtime, b.System, b.Network, b.Storage, b.Scheduler, b.Apiserver} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	return int64(h.Sum64()) //nolint:gosec // only compared
}
