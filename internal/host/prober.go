package host

import "context"

// Prober makes calls that could block for ever in the kernel: anything that touches a path on a foreign mount. Each is
// made by a short-lived child process (the agent's own binary), so that the agent itself never enters the D state. A
// child that does not answer within the deadline of ctx is killed and, where even that does not help, abandoned; above a
// cap of abandoned children every call answers ErrTooManyAbandoned at once.
type Prober struct {
	// Do runs one probe in a child.
	Do func(ctx context.Context, request ProbeRequest) (ProbeAnswer, error)
}

// ProbeRequest is what the child shall do with a path. Nothing in it writes.
type ProbeRequest struct {
	Op   ProbeOp `json:"op"`
	Path string  `json:"path"` // for ProbeAllowances the names of network devices, separated by slashes
}

// ProbeOp names a probe.
type ProbeOp string

// The probes.
const (
	ProbeStatfs ProbeOp = "statfs" // statfs(2) of the path and open(2) O_RDONLY|O_DIRECTORY of it
	// ProbeAllowances reads the counters *_allowance_exceeded of drivers (ethtool -S), which waits for the RTNL lock and
	// for the card: values are "ens5/pps_allowance_exceeded".
	ProbeAllowances ProbeOp = "allowances"
	// ProbeFabric reads states and error counters of all InfiniBand ports below the path, each a command to the card's
	// firmware, which may take a minute to fail: values are "mlx5_0/1/state".
	ProbeFabric ProbeOp = "fabric"
)

// ProbeAnswer is what the child learnt. Errno is 0, or why the kernel refused; a refusal is an answer, not an error of
// the probe.
type ProbeAnswer struct {
	Errno      int    `json:"errno,omitempty"`
	Flags      int64  `json:"flags,omitempty"` // f_flags of statfs
	Type       int64  `json:"type,omitempty"`  // f_type
	FreeBytes  uint64 `json:"freeBytes,omitempty"`
	TotalBytes uint64 `json:"totalBytes,omitempty"`

	Values map[string]string `json:"values,omitempty"` // by name; see the probes
}
