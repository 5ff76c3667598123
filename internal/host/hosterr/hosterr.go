// Package hosterr has the errors that the packages of internal/host share, and the two functions with which error texts
// quote input.
package hosterr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ErrNotConfigured means that the host has no such component, as far as the agent knows.
var ErrNotConfigured = errors.New("not configured")

// ErrForbidden means that a server authenticated the agent, but denied the request.
var ErrForbidden = errors.New("forbidden")

// ErrNoCertificate means that a server presents no certificate.
var ErrNoCertificate = errors.New("no certificate")

// ErrDoubt means that a setting of the node could not be determined: users other than root can write its file, or it
// cannot be parsed.
var ErrDoubt = errors.New("a setting is in doubt")

// Clip shortens a text that is quoted in an error.
func Clip(text string) string {
	const maxText = 200
	if len(text) > maxText {
		return finding.Clip(text, maxText) + "…"
	}
	return text
}

// Sanitize shortens external text for display: valid UTF-8, one line, no control characters, at most that number of
// bytes.
func Sanitize(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r)
	}), " ")
	if len(text) <= most {
		return text
	}
	return finding.Clip(text, most) + "…"
}

// Device formats a device number as the mount table does: "major:minor".
func Device(number uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))
}

// Ignore returns nil if err is one of the given errors, such as fs.ErrNotExist of a file that a host need not have.
func Ignore(err error, harmless ...error) error {
	if slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
		return nil
	}
	return err
}
