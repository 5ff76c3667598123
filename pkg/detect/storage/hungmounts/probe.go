package hungmounts

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// maxHungChildren bounds the children that this check leaves in the kernel: other checks need the prober too.
	maxHungChildren = 2
	// hungBackoff is the longest time between two timed probes of a hung filesystem.
	hungBackoff = 5 * time.Minute
	// autofsMagic is f_type of a trigger: the automount has gone since the mount table was read.
	autofsMagic = 0x0187
)

// probe probes the filesystems that are due, records their failures, and adds doubts about those whose state is
// unknown.
func (c *hungMounts) probe(ctx context.Context, h *host.Host, mounts []mount.Mount,
	filesystems []filesystem.Filesystem, results *checkkit.Results) {
	clock := h.Clock()
	now := clock.SinceBoot
	woken := c.lastRun > 0 && now-c.lastRun < hungMountsEvery*9/10
	c.lastRun = now
	var keys []string
	var requests []probe.ProbeRequest
	tree := filesystem.NewTree(mounts)
	for _, f := range filesystems {
		key := superblock(f)
		failure, failed := c.failing[key]
		switch request, err := f.Probe(h, tree); {
		case failed && (c.hung.Hangs(key) || !woken && now < failure.next):
		case c.children() >= maxHungChildren:
			results.Doubt(f.Subject(), fmt.Errorf("not probed: %d probes hang in the kernel already", c.children()))
		case !results.Doubt(f.Subject(), err):
			keys, requests = append(keys, key), append(requests, request)
		}
	}
	answers := c.hung.All(ctx, h, c.settings.Patience, keys, requests)
	failing := make(map[string]mountFailure)
	for _, f := range filesystems {
		key := superblock(f)
		failure, failed := c.failing[key]
		answer, probed := answers[key]
		fault, err := foreignFault(answer)
		switch {
		case !probed || results.Doubt(f.Subject(), err): // no result; the last state stays
			if failed {
				failing[key] = failure
			}
		case fault.Reason != "":
			failing[key] = failure.again(clock, fault)
		}
	}
	c.failing = failing
}

// children returns how many children hang: mounts that hang since the same run hang in one.
func (c *hungMounts) children() int {
	children := make(map[<-chan struct{}]bool)
	for key, result := range c.hung {
		if c.hung.Hangs(key) {
			children[result.Ended] = true
		}
	}
	return len(children)
}

// again returns the failure after one more failed probe.
func (p mountFailure) again(now finding.Timestamp, fault filesystem.Fault) mountFailure {
	if p.times == 0 {
		p.since = now.Wall
	}
	p.fault, p.times = fault, p.times+1
	// A little less than the interval, which the engine spreads.
	p.next = now.SinceBoot + min(hungMountsEvery<<min(p.times-1, 8), hungBackoff) - hungMountsEvery/10
	return p
}

// foreignFault interprets the answer of a filesystem. A healthy one has the zero fault.
func foreignFault(result probe.ProbeResult) (filesystem.Fault, error) {
	switch {
	case errors.Is(result.Err, probe.ErrHung):
		return filesystem.Fault{Reason: reasonMountHung, Text: "does not answer"}, nil
	case result.Err != nil:
		return filesystem.Fault{}, result.Err
	}
	switch errno := syscall.Errno(result.Answer.Errno); errno {
	case syscall.ENOTCONN, syscall.ESTALE, syscall.ECONNABORTED, syscall.EIO, syscall.EREMOTEIO, syscall.ETIMEDOUT,
		syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.ECONNRESET,
		syscall.ESHUTDOWN, syscall.ENXIO, syscall.ENODEV:
		return filesystem.Fault{Reason: reasonMountBroken, Text: "refuses every access", Evidence: errno.Error(),
			Certain: errno == syscall.ENOTCONN || errno == syscall.ESTALE}, nil
	case syscall.ENOENT, syscall.ENOTDIR:
		return filesystem.Fault{}, fmt.Errorf("probe: %w: unmounted meanwhile", errno)
	case syscall.EAGAIN: // SMB, for a request during which the connection broke
		return filesystem.Fault{}, fmt.Errorf("probe: %w", errno)
	}
	if result.Answer.Type == autofsMagic {
		return filesystem.Fault{}, errors.New("probe: expired meanwhile, or an automount covers it")
	}
	return filesystem.Fault{}, nil
}
