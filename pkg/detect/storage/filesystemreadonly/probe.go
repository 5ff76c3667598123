package filesystemreadonly

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// xfsMagic is f_type of XFS: what answers must be the filesystem that was meant.
	xfsMagic = 0x58465342
	// probeAgain is how soon a filesystem is asked again by looks that follow each other closely, as in a storm of I/O
	// errors: five times a second. The engine looks once more a second after each wake, so nothing is missed for it.
	probeAgain = 450 * time.Millisecond
)

// probeState remembers what XFS filesystems answered.
type probeState struct {
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
func (p *probeState) probeAll(ctx context.Context, h *host.Host, timeout time.Duration, mounts []mount.Mount,
	filesystems []examined) map[finding.Subject]error {
	now := h.Clock().SinceBoot
	fresh := make(map[string]probeResult)
	doubts := make(map[finding.Subject]error)
	var ask []*examined
	var requests []probe.ProbeRequest
	for i := range filesystems {
		f := &filesystems[i]
		if f.Principal.FSType != "xfs" || f.gone != "" {
			continue
		}
		if last, asked := p.answers[f.Identity()]; asked && last.known(now) {
			fresh[f.Identity()] = last
		} else if request, err := f.Probe(h, mounts); err != nil {
			doubts[f.Subject()] = err
		} else {
			ask, requests = append(ask, f), append(requests, request)
		}
	}
	for i, result := range h.Prober.All(ctx, timeout, requests) {
		errno, err := xfsAnswer(requests[i].Path, result)
		if err != nil && result.Ended == nil {
			doubts[ask[i].Subject()] = err // forgotten, so asked again in the next look
			continue
		}
		fresh[ask[i].Identity()] = probeResult{at: now, errno: errno, ended: result.Ended, err: err}
	}
	p.answers = fresh
	for i := range filesystems {
		f := &filesystems[i]
		answer := fresh[f.Identity()]
		if f.probeErrno = answer.errno; answer.err != nil {
			doubts[f.Subject()] = answer.err
		}
	}
	return doubts
}

// xfsAnswer understands what an XFS filesystem said to opening a directory: it answers EIO to everything once it is
// shut down.
func xfsAnswer(point string, result probe.ProbeResult) (errno string, err error) {
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
