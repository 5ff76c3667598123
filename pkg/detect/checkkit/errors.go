package checkkit

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ErrorText returns the name of an errno, otherwise the text of the error.
func ErrorText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if errno == syscall.EPERM {
			return "the packet filter of this node drops it (EPERM)"
		}
		return errno.Error()
	}
	if IsTimeout(err) {
		return "no answer in time"
	}
	return Sanitize(err.Error(), 200)
}

// IsTimeout reports whether an error is a timeout.
func IsTimeout(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}

// IsGone reports whether a cgroup, or a file of it, does not exist: reading a cgroup while it is removed fails with
// ENODEV.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// UnlessAbsent returns err, or NotApplicable with the reason if err is that a file does not exist.
func UnlessAbsent(err error, why string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return finding.NotApplicable("%s", why)
	}
	return err
}
