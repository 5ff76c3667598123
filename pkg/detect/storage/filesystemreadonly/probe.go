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
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
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
	hung    checkkit.HungProbes
	answers map[string]xfsAnswer
}

type xfsAnswer struct {
	at    time.Duration // uptime
	errno string        // EIO; empty if the filesystem works
}

// probeAll probes the XFS filesystems in one child, sets their errno if they were shut down, and returns those that did
// not answer.
func (p *probeState) probeAll(ctx context.Context, h *host.Host, timeout time.Duration, mounts []mount.Mount,
	filesystems []examined) map[finding.Subject]error {
	now := h.Clock().SinceBoot
	fresh := make(map[string]xfsAnswer)
	doubts := make(map[finding.Subject]error)
	var keys []string
	var requests []probe.ProbeRequest
	asked := make(map[string]string) // the path that is opened, by filesystem
	tree := sync.OnceValue(func() *filesystem.Tree { return filesystem.NewTree(mounts) })
	for i := range filesystems {
		f := &filesystems[i]
		if f.Principal.FSType != "xfs" || f.gone != "" {
			continue
		}
		if last, ok := p.answers[f.Identity()]; ok && now-last.at < probeAgain {
			fresh[f.Identity()] = last
		} else if request, err := f.Probe(h, tree()); err != nil {
			doubts[f.Subject()] = err
		} else {
			keys, requests = append(keys, f.Identity()), append(requests, request)
			asked[f.Identity()] = request.Path
		}
	}
	results := p.hung.All(ctx, h, timeout, keys, requests)
	for i := range filesystems {
		f := &filesystems[i]
		if result, probed := results[f.Identity()]; probed {
			errno, err := xfsErrno(asked[f.Identity()], result)
			if err != nil {
				doubts[f.Subject()] = err
				continue // not kept: the next run probes it again unless this probe still hangs
			}
			fresh[f.Identity()] = xfsAnswer{now, errno}
		}
		f.probeErrno = fresh[f.Identity()].errno
	}
	p.answers = fresh
	return doubts
}

// xfsErrno interprets the answer of an XFS filesystem to opening a directory: after a shutdown every call returns EIO.
func xfsErrno(point string, result probe.ProbeResult) (errno string, err error) {
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
