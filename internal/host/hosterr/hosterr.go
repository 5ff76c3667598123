// Package hosterr has the errors that the packages of internal/host share, and the two functions with which error texts
// quote input.
package hosterr

import (
	"errors"
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
