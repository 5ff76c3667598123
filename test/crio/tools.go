//go:build tools

// Package crio pins the CRI-O that the lab can run instead of containerd.
package crio

import (
	_ "github.com/cri-o/cri-o/cmd/crio"
	_ "github.com/cri-o/cri-o/test/copyimg" // which gives it images
)
