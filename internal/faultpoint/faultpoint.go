//go:build !faultpoints

// Package faultpoint lets tests kill the real agent between any two steps of a release. Built without the tag
// "faultpoints", as every shipped binary is, it does nothing.
package faultpoint

import "errors"

// Arm always fails in this build; see the variant with the tag.
func Arm(string) error { return errors.New("this binary was built without fault points") }

// Hit marks a point at which a test may want the process to die.
func Hit(string) {}
