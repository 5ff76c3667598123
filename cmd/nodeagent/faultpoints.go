//go:build !faultpoints

package main

import "github.com/spf13/cobra"

// armFaultpoints is empty in the product: see faultpoints_armed.go, which is built only for tests.
func armFaultpoints(*cobra.Command) {}
