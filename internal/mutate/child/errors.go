package child

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrChanged means that the object is no longer the inspected one. Nothing was changed.
var ErrChanged = errors.New("is no longer the object that was inspected")

// Refusal is the error for a change that must not be made.
type Refusal struct{ Why string }

func (r Refusal) Error() string { return "refused: " + r.Why }

// Refuse returns a Refusal.
func Refuse(format string, args ...any) error { return Refusal{fmt.Sprintf(format, args...)} }

// Changed returns an ErrChanged with the object before it.
func Changed(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrChanged)
}

// Harm means that an unmount affected other mounts. It is also an ErrChanged, which stops the release.
type Harm struct{ Why string }

func (h Harm) Error() string { return h.Why }

func (h Harm) Is(target error) bool { return target == ErrHarm || target == ErrChanged }

// ErrHarm means that an unmount unexpectedly removed other mounts too.
var ErrHarm = errors.New("other mounts are gone too")

// ErrGone means that the object is gone: there is nothing left to do.
var ErrGone = errors.New("gone")

// Gone adds the operand to a system call's error; ENOENT becomes ErrGone.
func Gone(name string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
