package detect

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// xfsMagic is f_type of XFS: what answers must be the filesystem that was meant.
	xfsMagic = 0x58465342
	// probeAgain is how soon a filesystem is asked again by looks that follow each other closely, as in a storm of I/O
	// errors: five times a second. The engine looks once more a second after each wake, so nothing is missed for it.
	probeAgain = 450 * time.Millisecond
)

// probeMemory remembers what XFS filesystems answered.
type probeMemory struct {
	answers map[string]probeResult
}

type probeResult struct {
	at    time.Duration   // uptime
	errno string          // EIO; empty for an answer
	ended <-chan struct{} // not nil: hangs until it is closed
	err   error           // of the probe that hangs
}

// known reports whether the filesystem need not be asked in a look at that time.
func (r probeResult) known(now time.Duration) bool {
	if r.ended == nil {
		return now-r.at < probeAgain
	}
	select {
	case <-r.ended:
		return false
	default:
		return true // a second child would only hang beside the first
	}
}

// probeAll asks the XFS filesystems, all by one child, whether they were shut down, sets their errno, and returns those
// that did not answer.
func (p *probeMemory) probeAll(ctx context.Context, h *host.Host, timeout time.Duration, mounts []host.Mount, filesystems []examined) map[finding.Subject]error {
	now := h.Clock().Up
	fresh := make(map[string]probeResult)
	doubts := make(map[finding.Subject]error)
	var ask []*examined
	var requests []host.ProbeRequest
	for i := range filesystems {
		f := &filesystems[i]
		if f.principal.FSType != "xfs" || f.gone != "" {
			continue
		}
		if last, asked := p.answers[f.identity()]; asked && last.known(now) {
			fresh[f.identity()] = last
		} else if request, err := f.probe(h, mounts); err != nil {
			doubts[f.subject()] = err
		} else {
			ask, requests = append(ask, f), append(requests, request)
		}
	}
	for i, result := range h.Prober.All(ctx, timeout, requests) {
		errno, err := xfsAnswer(requests[i].Path, result)
		if err != nil && result.Ended == nil {
			doubts[ask[i].subject()] = err // forgotten, so asked again in the next look
			continue
		}
		fresh[ask[i].identity()] = probeResult{at: now, errno: errno, ended: result.Ended, err: err}
	}
	p.answers = fresh
	for i := range filesystems {
		f := &filesystems[i]
		answer := fresh[f.identity()]
		if f.probeErrno = answer.errno; answer.err != nil {
			doubts[f.subject()] = answer.err
		}
	}
	return doubts
}

// identity tells one mount of a device from the next.
func (f filesystem) identity() string { return f.device + " " + strconv.Itoa(f.principal.ID) }

// probe returns the question to a filesystem, through a mount that nothing covers.
func (f filesystem) probe(h *host.Host, mounts []host.Mount) (host.ProbeRequest, error) {
	point, ok := reachable(mounts, f)
	if !ok {
		return host.ProbeRequest{}, fmt.Errorf("every mount of %s is covered by another one", f.principal.Source)
	}
	if h.Paths.InitPID > 1 {
		point = path.Join("/proc", strconv.Itoa(h.Paths.InitPID), "root", point)
	}
	return host.ProbeRequest{Op: host.ProbeStatfs, Path: point}, nil
}

// xfsAnswer understands what an XFS filesystem said to opening a directory: it answers EIO to everything once it is shut
// down.
func xfsAnswer(point string, result host.ProbeResult) (errno string, err error) {
	refused := syscall.Errno(result.Answer.Errno)
	switch {
	case result.Err != nil:
		return "", result.Err
	case refused == syscall.EIO, refused == syscall.ESHUTDOWN:
		return refused.Error(), nil
	case refused != 0:
		return "", fmt.Errorf("probe %s: %w", point, refused)
	case result.Answer.Type != xfsMagic:
		return "", fmt.Errorf("probe %s: answered by a filesystem of type %#x", point, result.Answer.Type)
	}
	return "", nil
}

// reachable returns a mount point of the filesystem that a path really leads to: the principal one if it does.
func reachable(mounts []host.Mount, f filesystem) (string, bool) {
	byID := mountsByID(mounts)
	candidates := append([]host.Mount{f.principal}, f.mounts...)
	for _, m := range candidates {
		if !covered(mounts, byID, m) {
			return m.Point, true
		}
	}
	return "", false
}

// covered reports whether something is mounted over m, or over a directory on the way to it. A path leaves each mount on
// its way at the first mount point that it meets there.
func covered(mounts []host.Mount, byID map[int]host.Mount, m host.Mount) bool {
	// By mount on the way: the length of the path at which it is left for the next one, and for m itself more than any.
	leftAt := map[int]int{m.ID: len(m.Point) + 1}
	for at := m; ; {
		above, ok := byID[at.Parent]
		if _, again := leftAt[at.Parent]; !ok || again { // the root, or a malformed table that goes round in circles
			break
		}
		leftAt[above.ID] = len(at.Point)
		at = above
	}
	return slices.ContainsFunc(mounts, func(other host.Mount) bool {
		_, onTheWay := leftAt[other.ID]
		end, beside := leftAt[other.Parent]
		return beside && !onTheWay && len(other.Point) < end && host.Below(m.Point, other.Point)
	})
}
