package main

import (
	"net/url"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
)

const reportVerb = "report"

func newReport(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   reportVerb,
		Short: "Report a day or a week of the fleet",
		Long: `Report a day or a week of the fleet: faults found, faults that ended by themselves or by a repair, faults that need
people, and the availability of the nodes. -o html prints a document for a mail. docs/event-center-reference.md defines each number.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newPeriod(o, report.Daily, "Report a day"), newPeriod(o, report.Weekly, "Report a week, Monday to Sunday"))
	return cmd
}

func newPeriod(o *options, p report.Period, short string) *cobra.Command {
	var date string
	cmd := &cobra.Command{
		Use:   string(p),
		Short: short,
		Long:  short + ". The exit code is 1 if a fault at its end needs people.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v1/reports/" + string(p) + "?" + url.Values{"date": {date}}.Encode()
			if o.Output == "html" {
				return o.mail(cmd, path)
			}
			return show(o, cmd, path, "report", func(r report.Report) bool { return r.Faults.NeedsPeople > 0 })
		},
	}
	cmd.Flags().StringVar(&date, "date", "today", "the day, or a day of the week: 2006-01-02, today or yesterday")
	return cmd
}

// mail prints the report as a document, with links to the center.
func (o *options) mail(cmd *cobra.Command, path string) error {
	base := url.Values{"format": {"html"}, "base": {o.Address()}}
	return o.Copy(cmd.Context(), cmd.OutOrStdout(), path+"&"+base.Encode())
}
