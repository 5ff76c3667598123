package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

func newInspect(o *options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "inspect [KIND...]",
		Short: "Show what deleted pods left behind, and how that is known",
		Long: `Compare what is on this node with the pods that belong here, and show what deleted pods left behind.

For each object: what every witness says of it, who holds it, and why it is or is not a leftover. Nothing is changed. To be
called a leftover an object must be seen several times; the running daemon remembers, and so does this command.`,
		RunE: func(cmd *cobra.Command, kinds []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				return err
			}
			selected, err := selectKinds(kinds)
			if err != nil {
				return err
			}
			bench, err := agent.OpenBench(cmd.Context(), cfg, quiet())
			if err != nil {
				return err
			}
			defer bench.Close()
			report, err := bench.Pass(cmd.Context(), selected...)
			if err != nil {
				return err
			}
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), complete(report))
			} else {
				err = printReport(cmd.OutOrStdout(), report, all)
			}
			if err != nil {
				return err
			}
			return inspectExit(report)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list what is live and what is no pod's")
	return cmd
}

// complete makes every list of the contract a list, also where it is empty.
func complete(r inspect.Report) inspect.Report {
	r.Objects, r.Gates, r.Errors = listed(r.Objects), listed(r.Gates), listed(r.Errors)
	for i := range r.Objects {
		r.Objects[i].Holders = listed(r.Objects[i].Holders)
	}
	return r
}

func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func selectKinds(names []string) ([]inspect.Kind, error) {
	var kinds []inspect.Kind
	for _, name := range names {
		if !slices.Contains(inspect.Kinds(), inspect.Kind(name)) {
			return nil, fmt.Errorf("no kind of object is called %q; there are %v", name, inspect.Kinds())
		}
		kinds = append(kinds, inspect.Kind(name))
	}
	return kinds, nil
}

// inspectExit: leftovers and candidates are problems; what could not be judged is "could not tell".
func inspectExit(r inspect.Report) error {
	has := func(verdicts ...inspect.Verdict) bool {
		return slices.ContainsFunc(r.Objects, func(o inspect.Judged) bool { return slices.Contains(verdicts, o.Verdict) })
	}
	switch {
	case has(inspect.Leftover, inspect.Candidate):
		return &exitError{Code: exitProblems}
	case has(inspect.Unknown) || len(r.Errors) > 0:
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

func printReport(w io.Writer, r inspect.Report, all bool) error {
	var b strings.Builder
	counts := map[inspect.Verdict]int{}
	var shown []inspect.Judged
	for _, o := range r.Objects {
		counts[o.Verdict]++
		if all || o.Verdict == inspect.Leftover || o.Verdict == inspect.Candidate || o.Verdict == inspect.Unknown {
			shown = append(shown, o)
		}
	}
	printPods(&b, shown)
	for _, e := range r.Errors {
		fmt.Fprintf(&b, "could not look at %s: %s\n", e.What, e.Error)
	}
	printClosedGates(&b, r.Gates)
	fmt.Fprintf(&b, "%d objects:", len(r.Objects))
	for _, verdict := range []inspect.Verdict{inspect.Leftover, inspect.Candidate, inspect.Unknown, inspect.Live, inspect.Foreign} {
		fmt.Fprintf(&b, " %d %s", counts[verdict], verdict)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func printClosedGates(b *strings.Builder, gates []inspect.Gate) {
	for _, g := range gates {
		if !g.Open {
			fmt.Fprintf(b, "gate closed: %s: %s\n", g.Name, g.Why)
		}
	}
}

// printPods prints objects pod by pod, those of one kind with the same story together: a pod's cgroup exists once in
// every hierarchy, and nobody wants to read the same proof ten times.
func printPods(b *strings.Builder, objects []inspect.Judged) {
	for _, pod := range groupedBy(objects, func(o inspect.Judged) string { return o.Pod.UID }) {
		title := "no pod that could be told"
		if pod[0].Pod != (inspect.Pod{}) {
			title = "pod " + podName(pod[0].Pod)
		}
		fmt.Fprintf(b, "%s\n", title)
		for _, same := range groupedBy(pod, story) {
			o := same[0]
			fmt.Fprintf(b, "  %s %s\n", strings.ToUpper(string(o.Verdict)), o.Kind)
			for _, line := range foldPaths(same) {
				fmt.Fprintf(b, "      %s\n", line)
			}
			printProof(b, same)
		}
		b.WriteString("\n")
	}
}

// story is all that is said of an object besides its name.
func story(o inspect.Judged) string {
	return fmt.Sprint(o.Verdict, o.Kind, o.Why, o.Witnesses, o.Release)
}

// foldPaths names cgroups that differ only in their hierarchy in one line.
func foldPaths(objects []inspect.Judged) []string {
	var lines []string
	hierarchies := map[string][]string{}
	for _, o := range objects {
		hierarchy, ok := o.Facts["hierarchy"]
		before, after, found := strings.Cut(o.ID, "/"+hierarchy+"/")
		if o.Kind != inspect.Cgroup || !ok || !found {
			lines = append(lines, o.ID)
			continue
		}
		path := before + "/*/" + after
		if hierarchies[path] == nil {
			lines = append(lines, path)
		}
		hierarchies[path] = append(hierarchies[path], hierarchy)
	}
	for i, line := range lines {
		if h := hierarchies[line]; h != nil {
			lines[i] = fmt.Sprintf("%s  (%s)", line, strings.Join(h, " "))
		}
	}
	return lines
}

func printProof(b *strings.Builder, same []inspect.Judged) {
	o := same[0]
	fmt.Fprintf(b, "      why: %s\n", o.Why)
	var witnesses []string
	for _, witness := range sortedKeys(o.Witnesses) {
		witnesses = append(witnesses, witness+" "+string(o.Witnesses[witness]))
	}
	fmt.Fprintf(b, "      witnesses: %s\n", strings.Join(witnesses, "; "))
	told := map[string]bool{}
	for _, object := range same {
		for _, h := range object.Holders {
			line := fmt.Sprintf("held by pid %d %s (%s) %s", h.PID, h.Command, h.How, podName(h.Pod))
			if !told[line] {
				told[line] = true
				fmt.Fprintf(b, "      %s\n", line)
			}
		}
	}
	if o.Release != "" {
		fmt.Fprintf(b, "      release: %s\n", o.Release)
	}
}

func podName(p inspect.Pod) string {
	name := strings.Trim(p.Namespace+"/"+p.Name, "/")
	switch {
	case name == "":
		return p.UID
	case p.UID == "":
		return name
	}
	return name + " (" + p.UID + ")"
}
