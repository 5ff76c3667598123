package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

func newInspect(o *options) *cobra.Command {
	var all, wide bool
	cmd := &cobra.Command{
		Use:   "inspect [KIND...]",
		Short: "Show what deleted pods left behind, and the proof",
		Long: `Compare what is on this node with the pods that belong here, and show what deleted pods left
behind.

For each object: whether each witness knows it, which processes hold it, and why it is or is not a leftover.
Nothing is changed. An object is called a leftover only after several passes; the running daemon remembers them,
and so does this command. Objects about which nothing could be learnt are counted by the cause; with --wide each is
listed, and IDs are whole.`,
		RunE: func(cmd *cobra.Command, kinds []string) error {
			selected, err := selectKinds(kinds)
			if err != nil {
				return err
			}
			report, err := inspectOnce(cmd.Context(), func(ctx context.Context) (bench, error) {
				cfg, err := o.load(ctx)
				if err != nil {
					return nil, err
				}
				b, err := agent.OpenBench(ctx, cfg, quiet())
				if err != nil {
					return nil, err // not an interface that holds a nil *Bench
				}
				return b, nil
			}, selected)
			if err != nil {
				return err
			}
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), complete(report))
			} else {
				err = printReport(cmd.OutOrStdout(), report, all, all || wide)
			}
			if err != nil {
				return err
			}
			return inspectExit(report)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list live objects and those that belong to no pod")
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "list each object, with whole IDs")
	return cmd
}

// The limits of one inspection: with that of the pass it takes 15 s at most, whatever hangs.
const (
	openLimit  = 4500 * time.Millisecond
	closeLimit = 500 * time.Millisecond
)

// bench is what an inspection by hand works with.
type bench interface {
	Pass(ctx context.Context, kinds ...inspect.Kind) (inspect.Report, error)
	Close() error
}

// inspectOnce makes one inspection. Where not even the layout of the node can be discovered in time, it reports that;
// what hangs ends with the process.
func inspectOnce(ctx context.Context, open func(context.Context) (bench, error), kinds []inspect.Kind) (inspect.Report,
	error) {
	type opened struct {
		bench bench
		err   error
	}
	done := make(chan opened, 1)
	go func() {
		b, err := open(ctx)
		done <- opened{b, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return inspect.Report{}, o.err
		}
		report, err := o.bench.Pass(ctx, kinds...)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = o.bench.Close() // nothing was changed through it
		}()
		select {
		case <-closed:
		case <-time.After(closeLimit):
		}
		return report, err
	case <-time.After(openLimit):
		why := fmt.Sprintf("discovery of kubelet and the runtime hangs: no answer within %s", openLimit)
		return inspect.Report{At: host.Now(), Errors: []inspect.Failure{{What: "layout", Error: why}}}, nil
	}
}

// complete makes empty lists of the contract [] instead of null.
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
			return nil, fmt.Errorf("unknown kind of object %q; the kinds are %v", name, inspect.Kinds())
		}
		kinds = append(kinds, inspect.Kind(name))
	}
	return kinds, nil
}

// hostGate is closed where the agent does not see the whole host. Then there may be more than is listed.
const hostGate = "host-namespaces"

// inspectExit: leftovers and candidates are problems; what could not be evaluated, or read, is "could not tell".
func inspectExit(r inspect.Report) error {
	has := func(verdicts ...inspect.Verdict) bool {
		return slices.ContainsFunc(r.Objects, func(o inspect.Assessment) bool {
			return slices.Contains(verdicts, o.Verdict)
		})
	}
	switch {
	case has(inspect.Leftover, inspect.Candidate, inspect.Unowned):
		return &exitError{Code: exitProblems}
	case has(inspect.Unknown) || len(r.Errors) > 0,
		slices.ContainsFunc(r.Gates, func(g inspect.Gate) bool { return g.Name == hostGate && !g.Open }):
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

func printReport(w io.Writer, r inspect.Report, all, wide bool) error {
	var b strings.Builder
	counts := map[inspect.Verdict]int{}
	var shown []inspect.Assessment
	for _, o := range r.Objects {
		counts[o.Verdict]++
		if all || o.Verdict == inspect.Leftover || o.Verdict == inspect.Candidate || o.Verdict == inspect.Unknown ||
			o.Verdict == inspect.Unowned {
			shown = append(shown, o)
		}
	}
	printInspected(&b, shown, r, wide)
	fmt.Fprintf(&b, "%d objects:", len(r.Objects))
	for _, verdict := range []inspect.Verdict{inspect.Leftover, inspect.Candidate, inspect.Unknown, inspect.Unowned,
		inspect.Live, inspect.Foreign} {
		fmt.Fprintf(&b, " %d %s", counts[verdict], verdict)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// printInspected prints some of the objects of a report, and what keeps it from being complete. Unless it is wide, a
// cause is printed once, however many objects it makes unknown.
func printInspected(b *strings.Builder, shown []inspect.Assessment, r inspect.Report, wide bool) {
	var text strings.Builder
	if wide {
		printPods(&text, shown)
	} else {
		isUnknown := func(o inspect.Assessment) bool { return o.Verdict == inspect.Unknown }
		printPods(&text, slices.DeleteFunc(slices.Clone(shown), isUnknown))
		printUnknown(&text, slices.DeleteFunc(slices.Clone(shown), func(o inspect.Assessment) bool {
			return !isUnknown(o)
		}))
	}
	printed := func(cause string) bool { return !wide && cause != "" && strings.Contains(text.String(), cause) }
	for _, e := range r.Errors {
		if !printed(e.Error) {
			fmt.Fprintf(&text, "could not inspect %s: %s\n", e.What, e.Error)
		}
	}
	for _, g := range r.Gates {
		why := g.Why
		if _, cause, ok := strings.Cut(why, ": "); ok && printed(cause) || printed(why) {
			why = "as above"
		}
		if !g.Open {
			fmt.Fprintf(&text, "gate closed: %s: %s\n", g.Name, why)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "note: %s\n", note)
	}
	if wide {
		b.WriteString(text.String())
	} else {
		b.WriteString(wholeID.ReplaceAllString(text.String(), "$1"))
	}
}

// wholeID is the ID of a container or sandbox. crictl and ctr accept its first 13 digits.
var wholeID = regexp.MustCompile(`\b([0-9a-f]{13})[0-9a-f]{51}\b`)

// printUnknown counts the objects about which nothing could be learnt, by the cause.
func printUnknown(b *strings.Builder, objects []inspect.Assessment) {
	for _, same := range groupedBy(objects, func(o inspect.Assessment) string { return o.Why }) {
		pods, kinds := map[string]bool{}, map[inspect.Kind]int{}
		for _, o := range same {
			pods[o.Pod.UID] = true
			kinds[o.Kind]++
		}
		var counts []string
		for _, kind := range inspect.Kinds() {
			if n := kinds[kind]; n > 0 {
				counts = append(counts, fmt.Sprintf("%s: %d", kind, n))
			}
		}
		fmt.Fprintf(b, "UNKNOWN %s (pods: %d; --wide lists them)\n      why: %s\n\n", strings.Join(counts, ", "),
			len(pods), same[0].Why)
	}
}

// printPods prints objects pod by pod. Objects of one kind with the same proof are printed together: a pod's cgroup
// exists once in every hierarchy.
func printPods(b *strings.Builder, objects []inspect.Assessment) {
	for _, pod := range groupedBy(objects, func(o inspect.Assessment) string { return o.Pod.UID }) {
		title := "unknown pod"
		if pod[0].Pod != (inspect.Pod{}) {
			title = "pod " + podName(pod[0].Pod)
		}
		fmt.Fprintf(b, "%s\n", title)
		for _, same := range groupedBy(pod, proof) {
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

// proof is what is printed of an object besides its name.
func proof(o inspect.Assessment) string {
	return fmt.Sprint(o.Verdict, o.Kind, o.Why, o.Witnesses, o.Release)
}

// foldPaths names cgroups that differ only in their hierarchy in one line.
func foldPaths(objects []inspect.Assessment) []string {
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

func printProof(b *strings.Builder, same []inspect.Assessment) {
	o := same[0]
	fmt.Fprintf(b, "      why: %s\n", o.Why)
	var witnesses []string
	for _, witness := range slices.Sorted(maps.Keys(o.Witnesses)) {
		witnesses = append(witnesses, witness+" "+string(o.Witnesses[witness]))
	}
	fmt.Fprintf(b, "      witnesses: %s\n", strings.Join(witnesses, "; "))
	printed := map[string]bool{}
	for _, object := range same {
		for _, h := range object.Holders {
			line := fmt.Sprintf("held by pid %d %s (%s) %s", h.PID, h.Command, h.How, podName(h.Pod))
			if !printed[line] {
				printed[line] = true
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
