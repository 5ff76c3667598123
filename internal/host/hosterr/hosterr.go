// Package hosterr holds the errors that all rooms of the host share.
package hosterr

import (
	"errors"
)

// ErrNotConfigured says that the host has no such component as far as the agent knows.
var ErrNotConfigured = errors.New("not configured")

// ErrForbidden says that somebody knows the agent, and that it has no right to what it asked for.
var ErrForbidden = errors.New("forbidden")

// ErrNoCertificate says that a server has no certificate to show.
var ErrNoCertificate = errors.New("no certificate")
