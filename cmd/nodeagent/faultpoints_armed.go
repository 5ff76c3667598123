//go:build faultpoints

package main

import (
	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/faultpoint"
)

// armFaultpoints adds a flag to every verb with which a test makes this process die at a chosen point of a release.
func armFaultpoints(root *cobra.Command) {
	file := root.PersistentFlags().String("faultpoints", "", "file that lists where this process is killed")
	valid := root.PersistentPreRunE
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := valid(cmd, args); err != nil {
			return err
		}
		if *file == "" {
			return nil
		}
		return faultpoint.Arm(*file)
	}
}
