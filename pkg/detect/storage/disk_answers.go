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
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// A query takes a process, and delays a spinning disk by milliseconds.
const (
	diskQueryEvery = time.Hour
	diskQueryAgain = 5 * time.Minute // of an unhealthy disk, or one of which the kernel logs errors meanwhile

	mapperControl = "/dev/mapper/control"
)

// diskAnswers keeps the answers of disks.
type diskAnswers[T any] struct {
	last  map[string]diskAnswer[T] // by name
	fresh map[string]diskAnswer[T] // of the current run
}

type diskAnswer[T any] struct {
	at        time.Duration // uptime
	disk      string        // the disk that had the name
	supported bool          // the disk supports the command
	health    T
	err       error
	unhealthy bool
}

// begin starts a run: disks that are not queried in it are dropped.
func (a *diskAnswers[T]) begin() { a.last, a.fresh = a.fresh, make(map[string]diskAnswer[T]) }

// keep keeps the answer of a disk that is not queried now.
func (a *diskAnswers[T]) keep(name, disk string) (diskAnswer[T], bool) {
	last, known := a.last[name]
	if !known || last.disk != disk {
		return diskAnswer[T]{}, false
	}
	a.fresh[name] = last
	return last, true
}

// query returns the answer of a disk, or that of the last hour. A disk that did not answer is not queried for an hour:
// it hangs, and so would each further process.
func (a *diskAnswers[T]) query(ctx context.Context, h *host.Host, request probe.ProbeRequest, disk string,
	parse func([]byte) (T, bool, error)) diskAnswer[T] {
	now, name := h.Clock().SinceBoot, path.Base(request.Path)
	if last, known := a.keep(name, disk); known && now >= last.at {
		age := now - last.at
		hung := errors.Is(last.err, context.DeadlineExceeded)
		if age < diskQueryAgain || age < diskQueryEvery && (hung || last.err == nil && !last.unhealthy) {
			return last
		}
	}
	answer := diskAnswer[T]{at: now, disk: disk}
	if answer.err = ctx.Err(); answer.err != nil { // the run has ended; the next one starts with this disk
		return answer
	}
	data, err := probeDevice(ctx, h, request)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
	case err != nil:
		answer.err = err
	default:
		answer.supported = true
		if answer.health, answer.unhealthy, answer.err = parse(data); answer.err != nil {
			answer.err = fmt.Errorf("%s: %w", request.Path, answer.err)
		}
	}
	a.fresh[name] = answer
	return answer
}

// askMapper makes a child process query the device mapper, and parses its answer.
func askMapper[T any](ctx context.Context, h *host.Host, op probe.ProbeOp, parse func(string) (T, error)) (T, error) {
	answer, err := probeDevice(ctx, h, probe.ProbeRequest{Op: op, Path: mapperControl})
	if err != nil {
		var none T
		return none, err
	}
	value, err := parse(string(answer))
	if err != nil {
		return value, fmt.Errorf("%s %s: %w", op, mapperControl, err)
	}
	return value, nil
}

// probeDevice returns the answer of a device; errors.ErrUnsupported: it does not support the command.
func probeDevice(ctx context.Context, h *host.Host, request probe.ProbeRequest) ([]byte, error) {
	answer, err := h.Prober.Ask(ctx, request)
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
