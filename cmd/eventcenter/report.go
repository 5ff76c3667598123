package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

func newReport(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Report a day or a week of the fleet",
		Long: `Report a day or a week of the fleet: faults found, faults that ended by themselves or by a repair, faults that need
people, and the availability of the nodes. -o html prints a document for a mail. docs/event-center-reference.md defines each number.`,
		Args: cobra.NoArgs,
	}
	for period, short := range map[report.Period]string{report.Daily: "Report a day",
		report.Weekly: "Report a week, Monday to Sunday"} {
		cmd.AddCommand(command.Verb[report.Report]{Use: string(period), Short: short,
			Long: short + ". The exit code is 1 if a fault at its end needs people.",
			Path: "/v1/reports/" + string(period), Template: "report", Formats: "text table json html",
			Flags: func(flags *pflag.FlagSet) {
				flags.String("date", "today", "the day, or a day of the week: 2006-01-02, today or yesterday")
			},
			Problem: func(r *report.Report) bool { return r.Faults.NeedsPeople > 0 }}.Command(&o.Asker))
	}
	return cmd
}
