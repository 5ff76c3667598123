//go:build tools

// Package runc pins the runc that the lab can run instead of Debian's, which knows no idmapped mounts and so no pods
// with users of their own.
package runc

import (
	_ "github.com/opencontainers/runc"
)
