package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web/client"
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
			if o.output == "html" {
				return o.mail(cmd, path)
			}
			var r report.Report
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), path, &r)
			if err == nil && !printed {
				err = printReport(cmd.OutOrStdout(), r)
			}
			if err == nil && r.Faults.NeedsPeople > 0 {
				err = errProblems
			}
			return err
		},
	}
	cmd.Flags().StringVar(&date, "date", "today", "the day, or a day of the week: 2006-01-02, today or yesterday")
	return cmd
}

// mail prints the report as a document, with links to the center.
func (o *options) mail(cmd *cobra.Command, path string) error {
	base := url.Values{"format": {"html"}, "base": {o.address()}}
	response, err := o.get(cmd.Context(), path+"&"+base.Encode(), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(response.Body, client.MaxAnswer))
	return err
}

// printReport prints the report for people.
func printReport(w io.Writer, r report.Report) error {
	location, err := time.LoadLocation(r.Timezone)
	if err != nil {
		location = time.UTC
	}
	moment := func(t time.Time) string { return t.In(location).Format("2006-01-02 15:04 MST") }
	fmt.Fprintf(w, "%s: %s to %s\n", event.Plain(r.Title()), moment(r.From), moment(r.To))
	if r.Partial {
		fmt.Fprintf(w, "PARTIAL: counted up to %s\n", moment(r.Through))
	}
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "NOT COUNTED: %s\n", event.Plain(strings.Join(r.Missing, ", ")))
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "LOST: %d events cannot be read any more\n", r.Lost)
	}
	a, f := r.Availability, r.Faults
	summary := [][]string{
		{"available", report.Percent(a.Available), fmt.Sprintf("of %d nodes; not available %s, unknown %s", a.Nodes,
			report.Percent(a.Unavailable), report.Percent(a.Unknown))},
		{"found", strconv.Itoa(f.Found), fmt.Sprintf("over at once %d, over before they were received %d; there before %d",
			f.OneShot, f.Late, f.OpenBefore)},
		{"cleared by itself", strconv.Itoa(f.Cleared)},
		{"repaired", strconv.Itoa(f.Repaired)},
		{"gone with the node", strconv.Itoa(f.Removed)},
		{"needs people", strconv.Itoa(f.NeedsPeople), fmt.Sprintf("of %d at the end; taken over %d, muted %d, information %d",
			f.Open, f.Owned, f.Muted, f.Info)},
		{"time to find", report.Length(r.Find.Median), fmt.Sprintf("median of %d; p90 %s", r.Find.Count,
			report.Length(r.Find.P90))},
		{"time to clear", report.Length(r.Clear.Median), fmt.Sprintf("median of %d; p90 %s", r.Clear.Count,
			report.Length(r.Clear.P90))},
	}
	if r.Leftovers.PerHundred != nil {
		summary = append(summary, []string{"leftovers", fmt.Sprintf("%.2f", *r.Leftovers.PerHundred),
			fmt.Sprintf("for a hundred of %d pods that ended", r.Leftovers.PodsEnded)})
	}
	if err := table(w, summary); err != nil {
		return err
	}
	return printRows(w, r)
}

// printRows prints the non-empty lists of the report.
func printRows(w io.Writer, r report.Report) error {
	needs := [][]string{{"NEEDS PEOPLE FOR", "SEVERITY", "CLUSTER", "NODE", "REASON", "SUBJECT", "MESSAGE"}}
	for _, n := range r.NeedsPeople {
		needs = append(needs, []string{report.Length(n.Seconds), string(n.Severity), n.Cluster, n.Node, byDetector(n.Reason, n.Detector),
			n.Subject.String(), n.Message})
	}
	faults := [][]string{{"FAULT", "SEVERITY", "NODES", "BEFORE", "FOUND", "CLEARED", "REPAIRED", "REMOVED", "OPEN", "NEW"}}
	fresh := map[string]bool{}
	for _, row := range r.New {
		fresh[row.Check+" "+byDetector(row.Reason, row.Detector)+" "+string(row.Severity)] = true
	}
	for _, row := range r.ByFault {
		name, is := row.Check+" "+byDetector(row.Reason, row.Detector), ""
		if fresh[name+" "+string(row.Severity)] {
			is = "new"
		}
		faults = append(faults, append(append([]string{name, string(row.Severity),
			strconv.Itoa(row.Nodes)}, numbers(row.Faults)...), is))
	}
	pools := placeRows("POOL", r.ByPool)
	zones := placeRows("ZONE", r.ByZone)
	worst := [][]string{{"WORST NODES", "CLUSTER", "NOT AVAILABLE", "UNKNOWN", "FAULTS"}}
	for _, n := range r.Worst {
		worst = append(worst, []string{n.Node, n.Cluster, report.Length(n.Time.Unavailable / 1000),
			report.Length(n.Time.Unknown / 1000), strconv.Itoa(n.Found)})
	}
	left := [][]string{{"LEFTOVERS", "FOUND", "RELEASED", "GONE", "OPEN"}}
	for _, k := range r.Leftovers.Kinds {
		left = append(left, []string{k.Kind, strconv.Itoa(k.Found), strconv.Itoa(k.Released), strconv.Itoa(k.Gone),
			strconv.Itoa(k.Open)})
	}
	for _, rows := range [][][]string{needs, faults, pools, zones, worst, left} {
		if len(rows) == 1 {
			continue
		}
		fmt.Fprintln(w)
		if err := table(w, rows); err != nil {
			return err
		}
	}
	return nil
}

// byDetector names the detector of a fault; agents are not named.
func byDetector(reason, detector string) string {
	if detector == "" {
		return reason
	}
	return reason + " (by " + detector + ")"
}

func numbers(f report.Faults) (cells []string) {
	for _, n := range []int{f.OpenBefore, f.Found, f.Cleared, f.Repaired, f.Removed, f.Open} {
		cells = append(cells, strconv.Itoa(n))
	}
	return cells
}

func placeRows(head string, places []report.PlaceRow) [][]string {
	rows := [][]string{{head, "CLUSTER", "NODES", "BEFORE", "FOUND", "CLEARED", "REPAIRED", "REMOVED", "OPEN", "AVAILABLE"}}
	for _, p := range places {
		if p.Name == "" && len(places) == 1 {
			continue
		}
		rows = append(rows, append(append([]string{p.Name, p.Cluster, strconv.Itoa(p.Nodes)}, numbers(p.Faults)...),
			report.Percent(p.Share.Available)))
	}
	return rows
}
