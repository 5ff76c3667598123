package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

func newClean(o *options) *cobra.Command {
	var yes, wide bool
	var wait time.Duration
	var pod string
	var only []string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Print the leftovers that would be released; release them after a yes",
		Long: `Print, step by step, the leftovers of deleted pods that a release would remove, and the guards that
are closed for each of them; --wide prints all guards. An answer that is the same for a whole pod or for the node is
printed once. Right before each step the command asks the guards again, and whether the pod has come back.

On a terminal it then asks once whether to release them. Only y or yes starts the release, and it touches only objects
of the plan. --yes releases without asking. Without a terminal, and with -o json, it releases only with --yes.

During a release the command writes each step to the journal, checks the object's identity right before the step and
the effect right after it, and prints the step on stderr. At the end it prints the gain of the node: only objects that
are verified to be gone. It touches only proven leftovers. A proof takes several passes: the running daemon has made
them; without a daemon, --wait repeats the inspection until each object is proven or live, or the time is over.

--pod releases the leftovers of one pod, --only some kinds (repeat it, or separate kinds by commas). Kinds that the
agent only reports are not listed here: see nodeagent inspect.

Only one release runs on a node at a time. The command waits at most 30 s for another one to end.

Exit codes: 0 no leftover remains; 1 leftovers remain, or were not released; 2 some answer is unknown (also whether
releases are paused), or another release is running.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				return err
			}
			c := cleaning{options: o, yes: yes, wide: wide, in: cmd.InOrStdin(), out: cmd.OutOrStdout(),
				stderr: cmd.ErrOrStderr()}
			if c.yes || c.asks() {
				// The person at the keyboard decides.
				cfg.Remediate.Mode, cfg.Remediate.Attended = release.On, true
			}
			if err := onlyKinds(&cfg.Remediate, only); err != nil {
				return err
			}
			bench, err := agent.OpenBench(cmd.Context(), cfg, quiet())
			if err != nil {
				return err
			}
			defer bench.Close()
			bench.About(pod)
			report, err := passUntilProven(cmd.Context(), bench, cmd.ErrOrStderr(), wait, cfg.Inspect)
			if err != nil {
				return err
			}
			c.bench, c.report = bench, ofPod(report, pod)
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "release without asking")
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "also print the guards that are open")
	cmd.Flags().StringVar(&pod, "pod", "", "only leftovers of the pod with this UID, name or NAMESPACE/NAME")
	cmd.Flags().StringSliceVar(&only, "only", nil, "only objects of these kinds: see nodeagent inspect")
	cmd.Flags().DurationVar(&wait, "wait", 0, "repeat the inspection for at most this long, until each object is proven or live")
	return cmd
}

// onlyKinds switches off the release of all other kinds.
func onlyKinds(s *release.Settings, names []string) error {
	only, err := selectKinds(names)
	if err != nil || len(only) == 0 {
		return err
	}
	modes := make(map[object.Kind]release.Mode)
	for _, kind := range kinds.Kinds() {
		modes[kind] = release.Off
	}
	for _, kind := range only {
		if why := kinds.Of(kind).ReportOnly; why != "" {
			return fmt.Errorf("--only %s: objects of this kind are reported only: %s", kind, why)
		}
		modes[kind] = s.ModeOf(kind)
	}
	s.Kinds = modes
	return nil
}

// ofPod returns the report without the objects of other pods; an empty name means all pods.
func ofPod(report object.Report, name string) object.Report {
	if name == "" {
		return report
	}
	uids := make(map[string]bool) // of the pods of this name: not every object has a name
	for _, o := range report.Objects {
		if o.Pod.UID == name || o.Pod.Name != "" && (o.Pod.Name == name || o.Pod.Namespace+"/"+o.Pod.Name == name) {
			uids[o.Pod.UID] = true
		}
	}
	report.Objects = slices.DeleteFunc(slices.Clone(report.Objects), func(o object.Assessment) bool {
		return o.Pod.UID == "" || !uids[o.Pod.UID]
	})
	return report
}

// passUntilProven inspects until no object is a candidate any more or the time is over.
func passUntilProven(ctx context.Context, bench *agent.Bench, progress io.Writer, wait time.Duration,
	s object.Settings) (object.Report, error) {
	end := time.Now().Add(wait)
	pause := max(min(s.Grace/time.Duration(max(s.Passes, 1)), s.Every), time.Second)
	for {
		report, err := bench.Pass(ctx)
		if err != nil {
			return report, err
		}
		report = kinds.Releasable(report)
		candidates := 0
		for _, o := range report.Objects {
			if o.Verdict == object.Candidate || o.Verdict == object.Unknown {
				candidates++
			}
		}
		if candidates == 0 || time.Now().Add(pause).After(end) {
			return report, nil
		}
		fmt.Fprintf(progress, "%d objects are not proven yet, next inspection in %s\n", candidates, pause)
		select {
		case <-ctx.Done():
			return report, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func printUndecided(b *strings.Builder, s screen, report object.Report) {
	report = bundle.Printable(report)
	var undecided []object.Assessment
	for _, o := range report.Objects {
		if o.Verdict == object.Candidate || o.Verdict == object.Unknown || o.Verdict == object.Unowned {
			undecided = append(undecided, o)
		}
	}
	printInspected(b, newInspectScreen(s, report), undecided, report, false)
}

// cleanExit: objects that are left over or were not released are problems; unknown objects are no success either,
// whether their release was tried or not. Objects of the release count by its outcome.
func cleanExit(report object.Report, outcome release.Outcome) error {
	has := func(ask func(release.Result) bool) bool {
		return slices.ContainsFunc(outcome.Pods, func(p release.PodOutcome) bool { return ask(p.Result) })
	}
	problem := func(r release.Result) bool { return r != release.Released && r != release.CouldNotTell }
	if outcome.Unknown { // no release was tried, and it is not known whether one may be
		return &exitError{Code: exitCouldNotTell}
	}
	if outcome.Stopped != "" && !outcome.Busy || has(problem) {
		return &exitError{Code: exitProblems}
	}
	if outcome.Busy || has(func(r release.Result) bool { return r == release.CouldNotTell }) {
		return &exitError{Code: exitCouldNotTell}
	}
	return inspectExit(untouched(report, outcome))
}

// untouched returns the report without the pods that were part of the release.
func untouched(report object.Report, outcome release.Outcome) object.Report {
	report.Objects = slices.DeleteFunc(slices.Clone(report.Objects), func(o object.Assessment) bool {
		return slices.ContainsFunc(outcome.Pods, func(p release.PodOutcome) bool {
			return p.Group == release.Group(o.Object)
		})
	})
	return report
}

// sameOutcome returns a key that is equal for steps of a pod that are printed in one line: same kind, result and
// reason.
func sameOutcome(s release.StepOutcome) string {
	return fmt.Sprint(s.Kind, s.Result, withoutID(s.Step, s.Blocked), withoutID(s.Step, s.Error))
}

// withoutID returns a text about a step without the name of its object and, for a mount, without its path.
func withoutID(s release.Step, text string) string {
	text = strings.NewReplacer(" in "+s.ID, "", " "+s.ID, "", s.ID, "").Replace(text)
	if point := s.Object.Identity.Mount.Point; point != "" {
		text = strings.ReplaceAll(text, " "+point, "")
	}
	return text
}

// outcomeText describes steps with the same outcome: the first object, the number of others, and the action.
func outcomeText(same []release.StepOutcome) string {
	s := same[0]
	objects := make([]object.Assessment, 0, len(same))
	descriptions := map[string]bool{}
	for _, step := range same {
		objects = append(objects, step.Object)
		descriptions[withoutID(step.Step, step.Description)] = true
	}
	lines := foldPaths(objects)
	name := cmp.Or(lines[0].path, s.ID)
	if more := len(lines) - 1; more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	text := fmt.Sprintf("%-11s %-*s %s", s.Result, kindWidth, timesText(string(s.Kind), len(same)), name)
	if len(descriptions) == 1 {
		text += ": " + withoutID(s.Step, s.Description)
	}
	return text + agent.NotDone(s)
}

func printOutcome(w io.Writer, report object.Report, outcome release.Outcome) error {
	var b strings.Builder
	for _, pod := range bundle.Printable(outcome.Pods) {
		fmt.Fprintf(&b, "pod %s: %s", cmp.Or(shortPod(pod.Pod), pod.Group), pod.Result)
		if pod.Why != "" {
			fmt.Fprintf(&b, ": %s", wholeID.ReplaceAllString(pod.Why, "$1"))
		}
		b.WriteString("\n")
		for _, same := range groupedBy(pod.Steps, sameOutcome) {
			fmt.Fprintf(&b, "  %s\n", wholeID.ReplaceAllString(outcomeText(same), "$1"))
		}
	}
	if len(outcome.Pods) > 0 {
		fmt.Fprintf(&b, "Gained: %s\n", savingsText(outcome.Savings()))
	}
	printUndecided(&b, screenOf(w), untouched(report, outcome))
	switch {
	case outcome.Stopped != "":
		fmt.Fprintf(&b, "Stopped: %s\n", outcome.Stopped)
	case len(outcome.Pods) == 0:
		b.WriteString("Nothing is proven to be a leftover; nothing was changed.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
