package hosterr

import (
	"errors"
	"slices"
)

// Ignore returns nil if err is one of the given errors, such as fs.ErrNotExist of a file that a host need not have.
func Ignore(err error, harmless ...error) error {
	if slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
		return nil
	}
	return err
}
