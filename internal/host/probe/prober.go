// Package probe asks what may hang in the kernel, in child processes that can be left behind.
package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Prober makes calls that could block for ever in the kernel: anything that touches a path on a foreign mount. They
// are made by short-lived child processes (the agent's own binary), so that the agent itself never enters the D
// state. A child that does not answer within the deadline of ctx is killed and, where even that does not help,
// abandoned; above a cap of abandoned children every call answers ErrTooManyAbandoned at once.
type Prober struct {
	// Do runs one probe in a child.
	Do func(ctx context.Context, request ProbeRequest) (ProbeAnswer, error)
	// Batch runs many probes in as few children as it can; see All, which is how it is called.
	Batch func(ctx context.Context, patience time.Duration, requests []ProbeRequest) []ProbeResult
}

// ErrHung says of a probe that its child did run, and waited for the path all the time that it was given.
var ErrHung = errors.New("hangs")

// ProbeResult is the outcome of one probe of several.
type ProbeResult struct {
	Answer ProbeAnswer
	Err    error
	// Ended is nil unless the probe hangs and its child could not be killed; it is closed when the kernel lets the
	// child go. Until then the path is known to hang without another probe.
	Ended <-chan struct{}
}

// All runs many probes, as a rule in one child, and returns a result for each, in their order. A probe that takes
// longer than patience costs only itself: its result is ErrHung, and that of others is not late by more than that.
// When ctx ends, what has no answer yet has the error of ctx.
func (p Prober) All(ctx context.Context, patience time.Duration, requests []ProbeRequest) []ProbeResult {
	switch {
	case len(requests) == 0:
		return nil
	case p.Batch != nil:
		return p.Batch(ctx, patience, requests)
	}
	results := make([]ProbeResult, len(requests))
	for i, request := range requests {
		results[i] = p.one(ctx, patience, request)
	}
	return results
}

// one is a batch of one where there is only Do, as in tests.
func (p Prober) one(ctx context.Context, patience time.Duration, request ProbeRequest) ProbeResult {
	if p.Do == nil {
		return ProbeResult{Err: fmt.Errorf("probe: %w", hosterr.ErrNotConfigured)}
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := p.Do(limited, request)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = hangs(request, patience)
	}
	return ProbeResult{Answer: answer, Err: err}
}

func hangs(request ProbeRequest, patience time.Duration) error {
	return fmt.Errorf("probe %s %s: %w, no answer within %s", request.Op, request.Path, ErrHung, patience)
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
	// ProbeAllowances reads the counters *_allowance_exceeded of drivers (ethtool -S), which waits for the RTNL lock
	// and for the card: values are "ens5/pps_allowance_exceeded".
	ProbeAllowances ProbeOp = "allowances"
	// ProbeFabric reads states and error counters of all InfiniBand ports below the path, each a command to the card's
	// firmware, which may take a minute to fail: values are "mlx5_0/1/state".
	ProbeFabric ProbeOp = "fabric"
)

// ProbeAnswer is what the child learnt. Errno is 0, or why the kernel refused; a refusal is an answer, not an error of
// the probe.
type ProbeAnswer struct {
	Errno      int    `json:"errno,omitempty"`
	Flags      int64  `json:"flags,omitempty"`     // f_flags of statfs
	Type       int64  `json:"type,omitempty"`      // f_type
	FreeBytes  uint64 `json:"freeBytes,omitempty"` // f_bavail: what is left for all, as df and kubelet count
	TotalBytes uint64 `json:"totalBytes,omitempty"`
	// f_bfree: what is left for root, who may use the reserved blocks too
	RootBytes  uint64 `json:"rootBytes,omitempty"`
	FreeInodes uint64 `json:"freeInodes,omitempty"` // f_ffree
	Inodes     uint64 `json:"inodes,omitempty"`     // f_files; 0 where the filesystem has no fixed number of them
	Data       []byte `json:"data,omitempty"`       // the raw answer of a disk: see the probes of disks

	Values map[string]string `json:"values,omitempty"` // by name; see the probes
}
