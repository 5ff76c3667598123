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
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// hungLeft bounds the children that this check leaves in the kernel: others probe with what the prober has besides.
	hungLeft = 2
	// hungBackoff is the longest distance of two questions on the timer to what does not answer.
	hungBackoff = 5 * time.Minute
	// autofsMagic is f_type of a trigger: the automount has gone since the mount table was read.
	autofsMagic = 0x0187
)

// ask asks the filesystems whose turn it is, brings the past up to date, and returns those of which nothing was learnt.
func (c *hungMounts) ask(ctx context.Context, h *host.Host, mounts []mount.Mount,
	filesystems []filesystem.Filesystem) map[finding.Subject]error {
	moment := h.Clock()
	now := moment.SinceBoot
	woken := c.looked > 0 && now-c.looked < hungMountsEvery*9/10
	c.looked = now
	doubts := make(map[finding.Subject]error)
	var keys []string
	var requests []probe.ProbeRequest
	for _, f := range filesystems {
		key := superblock(f)
		past, failed := c.past[key]
		switch request, err := f.Probe(h, mounts); {
		case failed && (c.hung.Hangs(key) || !woken && now < past.next):
		case c.children() >= hungLeft:
			doubts[f.Subject()] = fmt.Errorf("not asked: %d probes hang in the kernel already", c.children())
		case err != nil:
			doubts[f.Subject()] = err
		default:
			keys, requests = append(keys, key), append(requests, request)
		}
	}
	results := c.hung.All(ctx, h, c.settings.Patience, keys, requests)
	there := make(map[string]mountHistory)
	for _, f := range filesystems {
		key := superblock(f)
		past, failed := c.past[key]
		result, asked := results[key]
		if !asked {
			if failed {
				there[key] = past
			}
			continue
		}
		switch wrong, err := foreignFault(result); {
		case err != nil: // nothing was learnt; what was known is neither better nor worse
			doubts[f.Subject()] = err
			if failed {
				there[key] = past
			}
		case wrong.Reason != "":
			there[key] = past.again(moment, wrong)
		}
	}
	c.past = there
	return doubts
}

// children returns how many children hang: what hangs since the same look hangs in one.
func (c *hungMounts) children() int {
	children := make(map[<-chan struct{}]bool)
	for key, result := range c.hung {
		if c.hung.Hangs(key) {
			children[result.Ended] = true
		}
	}
	return len(children)
}

// again is the past after one more failure.
func (p mountHistory) again(now finding.Timestamp, wrong filesystem.Fault) mountHistory {
	if p.times == 0 {
		p.wall = now.Wall
	}
	p.fault, p.times = wrong, p.times+1
	// A little less than the interval, which the engine spreads.
	p.next = now.SinceBoot + min(hungMountsEvery<<min(p.times-1, 8), hungBackoff) - hungMountsEvery/10
	return p
}

// foreignFault understands the answer of a filesystem. A zero fault is health.
func foreignFault(result probe.ProbeResult) (filesystem.Fault, error) {
	switch {
	case errors.Is(result.Err, probe.ErrHung):
		return filesystem.Fault{Reason: reasonMountHung, Text: "does not answer"}, nil
	case result.Err != nil:
		return filesystem.Fault{}, result.Err
	}
	switch errno := syscall.Errno(result.Answer.Errno); errno {
	case syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ESTALE, syscall.EIO, syscall.EREMOTEIO, syscall.ETIMEDOUT,
		syscall.EHOSTDOWN,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ESHUTDOWN,
		syscall.ENXIO, syscall.ENODEV:
		return filesystem.Fault{Reason: reasonMountBroken, Text: "refuses every access", Evidence: errno.Error()}, nil
	case syscall.ENOENT, syscall.ENOTDIR:
		return filesystem.Fault{}, fmt.Errorf("probe: %w: unmounted meanwhile", errno)
	case syscall.EAGAIN: // SMB, of what was asked when the connection broke
		return filesystem.Fault{}, fmt.Errorf("probe: %w", errno)
	}
	if result.Answer.Type == autofsMagic {
		return filesystem.Fault{}, errors.New("probe: expired meanwhile, or an automount covers it")
	}
	return filesystem.Fault{}, nil
}
