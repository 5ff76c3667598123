//go:build man

package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
)

// addManual adds the hidden verb with which packages write the manual pages. Only a build with the tag "man" has it:
// the generator contains a Markdown parser, which does not belong in a program that runs as root on every node.
func addManual(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "man DIRECTORY", Short: "Write the manual pages into a directory", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			toMarkdown(root)
			return doc.GenManTree(root, &doc.GenManHeader{
				Date: new(time.Unix(0, 0).UTC()), Source: "nodeagent " + agent.Version, Manual: "nodeagent manual",
			}, args[0])
		},
	})
}

// toMarkdown converts the help of commands to the generator's format, and adds the sections that it lacks.
func toMarkdown(cmd *cobra.Command) {
	cmd.DisableAutoGenTag, cmd.Hidden = true, cmd.Hidden || cmd.Name() == "completion" // no pages for the latter
	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}
	cmd.Long = strings.ReplaceAll(cmd.Long, "\n  ", "\n    ") + manualSections
	for _, child := range cmd.Commands() {
		toMarkdown(child)
	}
}

const manualSections = `

# EXIT STATUS
0 fine, 1 problems found, 2 could not tell.

# FILES
**/etc/nodeagent/config.yaml**: the configuration, where it differs from **nodeagent config defaults**.

**/var/lib/nodeagent**: state that survives a restart.

**/run/nodeagent/nodeagent.sock**: the socket of the running agent, for root alone.

**/etc/nodeagent/stop**: while this file exists nothing is released.
`
