package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

func newEvents(o *options) *cobra.Command {
	var since time.Duration
	var pod string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the releases and repairs on this node, when they ran and how they ended",
		Long: `Print the journals of releases and of repairs, oldest first: all that the daemon and 'nodeagent clean' have done
on this node. It needs no running agent. A release without an end was interrupted: the next one begins with the state
of the node, never with the journal.

Exit codes: 0 printed; 2 the journal could not be read, or only a part of it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				return err
			}
			records, skipped, err := release.ReadJournal(cfg.StateDir)
			if err != nil {
				return err
			}
			records = selectRecords(records, since, pod)
			repairs, torn, err := repair.ReadJournal(cfg.StateDir)
			if err != nil {
				return err
			}
			skipped += torn
			repairs = slices.DeleteFunc(repairs, func(r repair.Record) bool {
				return pod != "" || since > 0 && time.Since(r.At.Wall) > since
			})
			if skipped > 0 {
				err = &exitError{Code: exitCouldNotTell}
			}
			return o.answer(cmd.OutOrStdout(), map[string]any{"records": listed(records), "repairs": listed(repairs),
				"skipped": skipped}, func(w io.Writer) error {
				return printEvents(w, records, repair.History(repairs), skipped, notEnded(cfg.StateDir, records))
			}, err)
		},
	}
	cmd.Flags().DurationVar(&since, "since", 0, "only entries not older than this, such as 24h (default: all)")
	cmd.Flags().StringVar(&pod, "pod", "", "only the pod with this UID, name or NAMESPACE/NAME")
	return cmd
}

// stopped is shown as the reason why a release has no end although none is running.
const stopped = "not ended: the agent or the machine was stopped"

// notEnded explains why the last release has no end, if it has none: it may still be running.
func notEnded(stateDir string, records []release.Record) string {
	if len(records) == 0 || records[len(records)-1].Event == release.Finish {
		return stopped
	}
	switch now, err := release.UnderWay(stateDir); {
	case err != nil:
		return fmt.Sprintf("not ended; cannot tell whether it is still running: %v", err)
	case now:
		return "under way"
	}
	return stopped
}

// selectRecords returns the records about one pod that are not older than since.
func selectRecords(records []release.Record, since time.Duration, pod string) []release.Record {
	return slices.DeleteFunc(records, func(r release.Record) bool {
		isPod := pod == "" || slices.Contains([]string{r.Group, r.Pod.UID, r.Pod.Name,
			r.Pod.Namespace + "/" + r.Pod.Name}, pod)
		return !isPod || since > 0 && time.Since(r.At.Wall) > since
	})
}

// printEvents prints each release as a block: the pod and how it ended, then its steps, equal ones in one line; then
// each repair as a line.
func printEvents(w io.Writer, records []release.Record, repairs []string, skipped int, last string) error {
	var b strings.Builder
	all := releases(records)
	for i, records := range all {
		unended := stopped
		if i == len(all)-1 { // releases never overlap
			unended = last
		}
		printRelease(&b, records, unended)
	}
	if len(records) == 0 {
		b.WriteString("Nothing was released on this node.\n")
	}
	for _, line := range repairs {
		b.WriteString(line + "\n")
	}
	if skipped > 0 {
		fmt.Fprintf(&b, "%d lines of the journal could not be read.\n", skipped)
	}
	_, err := io.WriteString(w, wholeID.ReplaceAllString(b.String(), "$1"))
	return err
}

// releases splits a journal into releases, which never overlap: each begins with its own record.
func releases(records []release.Record) [][]release.Record {
	var all [][]release.Record
	for i, r := range records {
		last := len(all) - 1
		if i == 0 || r.Event == release.Begin || r.Event == release.Notice || r.Group != all[last][0].Group ||
			all[last][0].Event == release.Notice {
			all = append(all, nil)
			last++
		}
		all[last] = append(all[last], r)
	}
	return all
}

func printRelease(b *strings.Builder, records []release.Record, unended string) {
	first, last := records[0], records[len(records)-1]
	at := first.At.Wall.Local().Format(time.DateTime)
	if first.Event == release.Notice {
		fmt.Fprintf(b, "%s  %s %s: %s\n", at, first.Kind, first.ID, first.Why)
		return
	}
	pod := first.Pod
	if pod == (object.Pod{}) {
		pod.UID = first.Group
	}
	result := unended
	if last.Event == release.Finish {
		result = string(last.Result)
	}
	if last.Why != "" && last.Event == release.Finish {
		result += ": " + last.Why
	}
	fmt.Fprintf(b, "%s  pod %s: %s\n", at, podName(pod), result)
	ended := slices.DeleteFunc(slices.Clone(records), func(r release.Record) bool { return !isStep(records, r) })
	for _, same := range groupedBy(ended, func(r release.Record) string {
		return fmt.Sprint(r.Kind, r.Result, r.Why)
	}) {
		printSteps(b, same)
	}
}

// isStep reports whether a record stands for a step: its end, or its intent if the step has no end.
func isStep(records []release.Record, r release.Record) bool {
	ended := slices.ContainsFunc(records, func(other release.Record) bool {
		return other.Event == release.End && other.Kind == r.Kind && other.ID == r.ID
	})
	return r.Event == release.End || r.Event == release.Intent && !ended
}

func printSteps(b *strings.Builder, same []release.Record) {
	r := same[0]
	result, what := string(r.Result), r.ID
	if r.Event == release.Intent {
		result = "not ended"
	}
	if len(same) > 1 {
		what = fmt.Sprintf("%s and %d more", r.ID, len(same)-1)
	}
	fmt.Fprintf(b, "    %-11s %-14s %s", result, r.Kind, what)
	if r.Why != "" {
		fmt.Fprintf(b, ": %s", r.Why)
	}
	b.WriteString("\n")
}
