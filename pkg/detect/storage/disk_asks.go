package storage

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// Asking a disk how it is takes a process, and on a spinning one a pause of milliseconds in what it does.
const (
	// askDisk is how often a disk is asked.
	askDisk = time.Hour
	// askDiskAgain is how soon one is asked that was unwell, or of which the kernel complains meanwhile.
	askDiskAgain = 5 * time.Minute
)

// diskAsks remembers what disks said.
type diskAsks[T any] struct {
	last  map[string]diskAnswer[T] // by name
	fresh map[string]diskAnswer[T] // of the look that is going on
}

// diskAnswer is what one disk said.
type diskAnswer[T any] struct {
	at     time.Duration // uptime
	disk   string        // which disk had the name
	knows  bool          // false: it knows no such command
	said   T
	err    error
	unwell bool
}

// begin begins a look: disks that are not asked for in it are forgotten.
func (a *diskAsks[T]) begin() { a.last, a.fresh = a.fresh, make(map[string]diskAnswer[T]) }

// keep takes over what a disk said that shall not be asked now.
func (a *diskAsks[T]) keep(name, disk string) (diskAnswer[T], bool) {
	last, known := a.last[name]
	if !known || last.disk != disk {
		return diskAnswer[T]{}, false
	}
	a.fresh[name] = last
	return last, true
}

// ask returns what a disk says, or what it said within the hour. One that did not answer is left alone for an hour:
// it hangs, and so would each further process.
func (a *diskAsks[T]) ask(ctx context.Context, h *host.Host, request probe.ProbeRequest, disk string,
	parse func([]byte) (T, bool, error)) diskAnswer[T] {
	now, name := h.Clock().SinceBoot, path.Base(request.Path)
	if last, known := a.keep(name, disk); known && now >= last.at {
		age := now - last.at
		hung := errors.Is(last.err, context.DeadlineExceeded)
		if age < askDiskAgain || age < askDisk && (hung || last.err == nil && !last.unwell) {
			return last
		}
	}
	answer := diskAnswer[T]{at: now, disk: disk}
	if answer.err = ctx.Err(); answer.err != nil { // the look is over; the next one begins with this disk
		return answer
	}
	data, err := probeDisk(ctx, h, request)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
	case err != nil:
		answer.err = err
	default:
		answer.knows = true
		if answer.said, answer.unwell, answer.err = parse(data); answer.err != nil {
			answer.err = fmt.Errorf("%s: %w", request.Path, answer.err)
		}
	}
	a.fresh[name] = answer
	return answer
}

// probeDisk returns what a disk said; errors.ErrUnsupported: it knows no such command.
func probeDisk(ctx context.Context, h *host.Host, request probe.ProbeRequest) ([]byte, error) {
	if h.Prober.Do == nil {
		return nil, fmt.Errorf("probe: %w", hosterr.ErrNotConfigured)
	}
	answer, err := h.Prober.Do(ctx, request)
	if err != nil {
		return nil, err
	}
	switch errno := syscall.Errno(answer.Errno); {
	case slices.Contains([]syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOTTY, syscall.EINVAL, syscall.ENOSYS}, errno):
		return nil, fmt.Errorf("%s %s: %w", request.Op, request.Path, errors.ErrUnsupported)
	case errno != 0:
		return nil, fmt.Errorf("%s %s: %w", request.Op, request.Path, errno)
	}
	return answer.Data, nil
}
