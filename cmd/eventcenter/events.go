package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

func newEvents(o *options) *cobra.Command {
	return command.Verb[api.List]{Use: "events", Short: "List events in the order in which they arrived",
		Flags: func(flags *pflag.FlagSet) {
			flags.String("after", "", "begin after this offset (default: with the oldest event)")
			flags.String("cel", "", "only events for which this CEL expression is true, such as severity == \"fatal\" && "+
				"data.facts.device == \"sda\"")
			flags.String("limit", "100", "maximum number of events")
			addFilter(flags, map[string]*[]string{}, "cluster", "node", "type", "severity", "check", "reason")
		}}.Command(&o.Asker)
}
