package detect

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// xfsMagic is f_type of XFS: what answers must be the filesystem that was meant.
	xfsMagic = 0x58465342
	// probesPerLook bounds what a look on the timer costs where there are many XFS volumes: the kernel logs each
	// shutdown, which wakes the check, so that asking them in turn is only for what was not heard.
	probesPerLook = 4
	// probeAgain is how soon a filesystem is asked again by looks that follow each other closely, as in a storm of I/O
	// errors: five times a second. The engine looks once more a second after each wake, so nothing is missed for it.
	probeAgain = 450 * time.Millisecond
)

// probeMemory remembers what XFS filesystems answered, so that not all need to be asked in each look.
type probeMemory struct {
	mu      sync.Mutex // guards all below; held during a look, of which there is one at a time
	answers map[string]probeResult
	looked  time.Duration // uptime of the last look
}

type probeResult struct {
	at    time.Duration // uptime
	errno string
}

// probeAll asks the XFS filesystems whether they were shut down, sets their errno, and returns those that did not answer.
func (p *probeMemory) probeAll(ctx context.Context, h *host.Host, timeout time.Duration, mounts []host.Mount, filesystems []filesystem) map[finding.Subject]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := h.Clock().Up
	var xfs []*filesystem
	for i := range filesystems {
		if f := &filesystems[i]; f.principal.FSType == "xfs" && f.gone == "" {
			xfs = append(xfs, f)
		}
	}
	fresh := make(map[string]probeResult, len(xfs))
	doubts := make(map[finding.Subject]error)
	ask := p.choose(now, xfs)
	for _, f := range xfs {
		if !slices.Contains(ask, f) {
			fresh[f.identity()] = p.answers[f.identity()]
			f.probeErrno = fresh[f.identity()].errno
			continue
		}
		errno, err := probeXFS(ctx, h, timeout, mounts, *f)
		if err != nil {
			doubts[f.subject()] = err // forgotten, so asked again in the next look
			continue
		}
		f.probeErrno = errno
		fresh[f.identity()] = probeResult{at: now, errno: errno}
	}
	p.answers, p.looked = fresh, now
	return doubts
}

// choose returns whom to ask: all in a look that was woken, on the timer those asked longest ago; always those that are
// new, did not answer, or answered badly.
func (p *probeMemory) choose(now time.Duration, xfs []*filesystem) []*filesystem {
	onTimer := p.looked > 0 && now-p.looked >= filesystemReadonlyEvery*9/10
	var must, may []*filesystem
	for _, f := range xfs {
		last, known := p.answers[f.identity()]
		switch {
		case known && now-last.at < probeAgain:
		case !known || last.errno != "" || !onTimer:
			must = append(must, f)
		default:
			may = append(may, f)
		}
	}
	slices.SortStableFunc(may, func(a, b *filesystem) int {
		return int(p.answers[a.identity()].at - p.answers[b.identity()].at)
	})
	return append(must, may[:min(len(may), probesPerLook)]...)
}

// identity tells one mount of a device from the next.
func (f filesystem) identity() string { return f.device + " " + strconv.Itoa(f.principal.ID) }

// probeXFS asks one filesystem, through a mount that nothing covers, to open a directory. XFS answers EIO to everything
// once it is shut down.
func probeXFS(ctx context.Context, h *host.Host, timeout time.Duration, mounts []host.Mount, f filesystem) (errno string, err error) {
	if h.Prober.Do == nil {
		return "", fmt.Errorf("probe: %w", host.ErrNotConfigured)
	}
	point, ok := reachable(mounts, f)
	if !ok {
		return "", fmt.Errorf("every mount of %s is covered by another one", f.principal.Source)
	}
	if h.Paths.InitPID > 1 {
		point = path.Join("/proc", strconv.Itoa(h.Paths.InitPID), "root", point)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := h.Prober.Do(ctx, host.ProbeRequest{Op: host.ProbeStatfs, Path: point})
	if err != nil {
		return "", err
	}
	refused := syscall.Errno(answer.Errno)
	switch {
	case refused == syscall.EIO, refused == syscall.ESHUTDOWN:
		return refused.Error(), nil
	case refused != 0:
		return "", fmt.Errorf("probe %s: %w", point, refused)
	case answer.Type != xfsMagic:
		return "", fmt.Errorf("probe %s: answered by a filesystem of type %#x", point, answer.Type)
	}
	return "", nil
}

// reachable returns a mount point of the filesystem that a path really leads to: the principal one if it does.
func reachable(mounts []host.Mount, f filesystem) (string, bool) {
	byID := make(map[int]host.Mount, len(mounts))
	for _, m := range mounts {
		byID[m.ID] = m
	}
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
