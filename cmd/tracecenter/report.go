package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

func newReport(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "report", Short: "How was the week?", Args: cobra.NoArgs}
	var week, namespace string
	weekly := &cobra.Command{
		Use:   "weekly",
		Short: "How was the week?",
		Long: `How was the week? The last 7 days, or with --week a calendar week. -o html prints a document for an email. The exit code
is 1 if the budget of errors is spent, and 2 if it has too few samples.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v1/report?" + url.Values{"week": {week}, "namespace": {namespace}}.Encode()
			if o.output == "html" {
				response, err := o.remote().Send(cmd.Context(), http.MethodGet, path+"&format=html", nil, nil)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(response.Body, client.MaxAnswer))
				return err
			}
			var r report.Report
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), path, &r)
			if err == nil && !printed {
				err = printReport(cmd.OutOrStdout(), &r)
			}
			switch left := r.Budget.Left; {
			case err != nil:
				return err
			case left == nil:
				return errCouldNotTell
			case *left < 0:
				return errProblems
			}
			return nil
		},
	}
	weekly.Flags().StringVar(&week, "week", "", "an ISO week, as 2026-W48 (default: the last 7 days)")
	weekly.Flags().StringVar(&namespace, "namespace", "", "only pods of a namespace")
	cmd.AddCommand(weekly)
	return cmd
}

// few is how many lines of a list are printed: -o json has all.
const few = 8

func printReport(to io.Writer, r *report.Report) error {
	const moment = "2006-01-02 15:04 MST"
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: %s to %s\n", plain(r.Title()), r.From.Format(moment), r.To.Format(moment))
	for _, missing := range r.Missing {
		fmt.Fprintf(w, "NOT IN IT: %s\n", plain(missing))
	}
	fmt.Fprintf(w, "budget: %s left of %.0f of %d days; %s of %d creations in time, the objective is %.0f %%\n", report.Percent(r.Budget.Left),
		r.Budget.Days, report.Days, report.Percent(r.Budget.Success), r.Budget.Samples, 100*r.Budget.Objective)
	fmt.Fprint(w, "\nACT\tIN TIME\tWEEK BEFORE\tDELIVERED\tSYSTEM\tUSER\tEXCLUDED\tUNKNOWN\n")
	for _, a := range r.Acts {
		fmt.Fprintf(w, "%s\t%s\t%s of %d\t%d\t%d\t%d\t%d\t%d\n", a.Act, report.Percent(a.Success), report.Percent(a.Before.Success), a.Before.Samples,
			a.Delivered, a.System, a.User, a.Excluded, a.Unknown)
	}
	printReasons(w, r.Reasons)
	printWorst(w, "WORST OWNER", r.Owners)
	printWorst(w, "WORST NODE", r.Nodes)
	if len(r.Leftovers) > 0 {
		fmt.Fprint(w, "\nNEW LEFTOVER\tWHOSE\tPODS\tNEWEST\n")
	}
	for _, l := range r.Leftovers {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", plain(l.Reason), plain(l.Class), l.N, plain(l.Example))
	}
	if len(r.Stages) > 0 {
		fmt.Fprint(w, "\nSTAGE\tACT\tSAMPLES\tMEDIAN\tP90\tSHARE OF THE TIME\n")
	}
	for _, s := range r.Stages {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", s.Name, s.Act, s.Samples, report.Seconds(s.P50), report.Seconds(s.P90), report.Percent(s.Share))
	}
	for _, v := range r.Slower[:min(len(r.Slower), few)] {
		fmt.Fprintf(w, "\nSLOWER: %s %s than %s: %s, p90 %s instead of %s\n", v.Component, plain(v.Version), plain(v.Than), v.Name,
			report.Seconds(&v.P90), report.Seconds(&v.ThanP90))
	}
	if len(r.Online) > 0 {
		fmt.Fprint(w, "\nCOMPONENT\tINSTANCE\tONLINE\tPROBES\n")
	}
	for _, c := range r.Online {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", plain(c.Component), plain(c.Instance), report.Percent(c.Rate), c.Samples)
	}
	if len(r.Requests) > 0 {
		fmt.Fprint(w, "\nFLOWSCHEMA\tNOT THROTTLED\tREQUESTS\n")
	}
	for _, q := range r.Requests {
		fmt.Fprintf(w, "%s\t%s\t%d\n", plain(q.Instance), report.Percent(q.Rate), q.Samples)
	}
	if r.Exhausted > 0 {
		fmt.Fprintf(w, "\n%d creations found no room\nTOOK THE LAST CAPACITY\tPODS\tCPU\tMEMORY GIB\n", r.Exhausted)
	}
	for _, p := range r.Took[:min(len(r.Took), few)] {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", plain(p.Namespace), p.Pods, p.Cores(), p.Memory())
	}
	if c := r.Center; c != nil {
		fmt.Fprintf(w, "\nnodes in %s: %d, %s available, %s unknown; %d faults found, %d repaired\n", plain(c.Week), c.Nodes, report.Percent(&c.Available),
			report.Percent(&c.Unknown), c.Found, c.Repaired)
	}
	return w.Flush()
}

func printReasons(w io.Writer, reasons []report.Reason) {
	if len(reasons) > 0 {
		fmt.Fprint(w, "\nREASON\tACT\tWHOSE\tMISSES\tWEEK BEFORE\t\tNEWEST\n")
	}
	for i, r := range reasons {
		if i >= few && !r.New {
			continue
		}
		isNew := ""
		if r.New {
			isNew = "new"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", plain(r.Reason), r.Act, plain(r.Class), r.N, r.Before, isNew, plain(r.Example))
	}
}

func printWorst(w io.Writer, head string, all []report.Worst) {
	if len(all) > 0 {
		fmt.Fprintf(w, "\n%s\tMISSED BY THE SYSTEM\tOF ITS ACTS\tSHARE\tOF ALL SUCH MISSES\n", head)
	}
	for _, x := range all[:min(len(all), few)] {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", plain(x.Name), x.Missed, x.Samples, report.Percent(x.Share), report.Percent(x.OfAll))
	}
}
