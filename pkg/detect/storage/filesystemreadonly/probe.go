package filesystemreadonly

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// xfsMagic is f_type of XFS: the answer must come from the intended filesystem.
	xfsMagic = 0x58465342
	// probeAgain is how soon a filesystem is probed again by runs in quick succession, as in a storm of I/O errors:
	// five a second. The engine runs the check again a second after each wake, so no fault is missed.
	probeAgain = 450 * time.Millisecond
)

// probeState keeps the answers of XFS filesystems.
type probeState struct {
	answers map[string]probeResult
}

type probeResult struct {
	at    time.Duration   // uptime
	errno string          // EIO; empty if it answered
	ended <-chan struct{} // not nil: the probe hangs until it is closed
	err   error           // of the hung probe
}

// known reports whether the filesystem need not be probed at that time.
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

// probeAll probes the XFS filesystems in one child, sets their errno if they were shut down, and returns those that did
// not answer.
func (p *probeState) probeAll(ctx context.Context, h *host.Host, timeout time.Duration, mounts []mount.Mount,
	filesystems []examined) map[finding.Subject]error {
	now := h.Clock().SinceBoot
	fresh := make(map[string]probeResult)
	doubts := make(map[finding.Subject]error)
	var due []*examined
	var requests []probe.ProbeRequest
	tree := sync.OnceValue(func() *filesystem.Tree { return filesystem.NewTree(mounts) })
	for i := range filesystems {
		f := &filesystems[i]
		if f.Principal.FSType != "xfs" || f.gone != "" {
			continue
		}
		if last, ok := p.answers[f.Identity()]; ok && last.known(now) {
			fresh[f.Identity()] = last
		} else if request, err := f.Probe(h, tree()); err != nil {
			doubts[f.Subject()] = err
		} else {
			due, requests = append(due, f), append(requests, request)
		}
	}
	for i, result := range h.Prober.All(ctx, timeout, requests) {
		errno, err := xfsAnswer(requests[i].Path, result)
		if err != nil && result.Ended == nil {
			doubts[due[i].Subject()] = err // not kept, so probed again in the next run
			continue
		}
		fresh[due[i].Identity()] = probeResult{at: now, errno: errno, ended: result.Ended, err: err}
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

// xfsAnswer interprets the answer of an XFS filesystem to opening a directory: after a shutdown every call returns EIO.
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
