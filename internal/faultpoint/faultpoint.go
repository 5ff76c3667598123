//go:build !faultpoints

// Package faultpoint lets tests kill the real agent between any two steps of a release. Without the build tag
// "faultpoints", as in every shipped binary, it has no effect.
package faultpoint

import "errors"

// Arm always fails in this build; see the variant with the tag.
func Arm(string) error { return errors.New("this binary was built without fault points") }

// Hit marks a point at which a test may want the process to die.
func Hit(string) {}
