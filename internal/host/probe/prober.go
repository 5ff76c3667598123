// Package probe makes calls that may hang in the kernel, in child processes that can be abandoned.
package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Prober makes calls that could block forever in the kernel: anything that touches a path on a foreign mount.
// Short-lived child processes (the agent's own binary) make them, so that the agent itself never enters the D state. A
// child that does not answer within the deadline of ctx is killed and, if even that does not help, abandoned; above a
// limit of abandoned children every call fails with ErrTooManyAbandoned at once.
type Prober struct {
	// Do runs one probe in a child.
	Do func(ctx context.Context, request ProbeRequest) (ProbeAnswer, error)
	// Batch runs many probes in as few children as possible; call it through All.
	Batch func(ctx context.Context, patience time.Duration, requests []ProbeRequest) []ProbeResult
}

// ErrHung means that a probe's child ran, and waited for the path during all of its time.
var ErrHung = errors.New("hangs")

// ProbeResult is the outcome of one probe of several.
type ProbeResult struct {
	Answer ProbeAnswer
	Err    error
	// Ended is nil unless the probe hangs and its child could not be killed; it is closed when the kernel lets the
	// child go. Until then the path is known to hang without another probe.
	Ended <-chan struct{}
}

// All runs many probes, normally in one child, and returns a result for each, in order. A probe that takes longer than
// patience affects only itself: its result is ErrHung, and it delays others by no more than that. When ctx ends,
// unanswered probes get the error of ctx.
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

// Ask runs one probe until ctx ends.
func (p Prober) Ask(ctx context.Context, request ProbeRequest) (ProbeAnswer, error) {
	if p.Do == nil {
		return ProbeAnswer{}, fmt.Errorf("probe: %w", hosterr.ErrNotConfigured)
	}
	return p.Do(ctx, request)
}

// one is a batch of one if there is only Do, as in tests.
func (p Prober) one(ctx context.Context, patience time.Duration, request ProbeRequest) ProbeResult {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := p.Ask(limited, request)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = hangs(request, patience)
	}
	return ProbeResult{Answer: answer, Err: err}
}

func hangs(request ProbeRequest, patience time.Duration) error {
	return fmt.Errorf("probe %s %s: %w, no answer within %s", request.Op, request.Path, ErrHung, patience)
}

// ProbeRequest is the request to a child about a path. No request writes.
type ProbeRequest struct {
	Op   ProbeOp `json:"op"`
	Path string  `json:"path"` // for ProbeAllowances the names of network devices, separated by slashes
}

// ProbeOp names a probe.
type ProbeOp string

// The probes.
const (
	ProbeStatfs ProbeOp = "statfs" // statfs(2) of the path and open(2) O_RDONLY|O_DIRECTORY of it
	// ProbeAllowances reads the drivers' counters *_allowance_exceeded (ethtool -S), which waits for the RTNL lock and
	// for the card: values are "ens5/pps_allowance_exceeded".
	ProbeAllowances ProbeOp = "allowances"
	// ProbeFabric reads states and error counters of all InfiniBand ports below the path. Each is a command to the
	// card's firmware, which may take a minute to fail: values are "mlx5_0/1/state".
	ProbeFabric ProbeOp = "fabric"
)

// ProbeAnswer is the child's result. Errno is 0, or the kernel's refusal; a refusal is an answer, not an error of the
// probe.
type ProbeAnswer struct {
	Errno      int    `json:"errno,omitempty"`
	Flags      int64  `json:"flags,omitempty"`     // f_flags of statfs
	Type       int64  `json:"type,omitempty"`      // f_type
	FreeBytes  uint64 `json:"freeBytes,omitempty"` // f_bavail: free for all users, as df and kubelet count
	TotalBytes uint64 `json:"totalBytes,omitempty"`
	// f_bfree: free for root, who may also use the reserved blocks
	RootBytes  uint64 `json:"rootBytes,omitempty"`
	FreeInodes uint64 `json:"freeInodes,omitempty"` // f_ffree
	Inodes     uint64 `json:"inodes,omitempty"`     // f_files; 0 if the filesystem has no fixed number
	Data       []byte `json:"data,omitempty"`       // the raw answer of a disk: see the probes of disks

	Values map[string]string `json:"values,omitempty"` // by name; see the probes
}

// FreePercent is the share of free space, of a statfs.
func (a ProbeAnswer) FreePercent() float64 { return float64(a.FreeBytes) / float64(a.TotalBytes) * 100 }

// FreeInodePercent is the share of free inodes: 100 if the filesystem has no fixed number of them.
func (a ProbeAnswer) FreeInodePercent() float64 {
	if a.Inodes == 0 {
		return 100
	}
	return float64(a.FreeInodes) / float64(a.Inodes) * 100
}
