package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

func newInspect(o *options) *cobra.Command {
	var v inspectView
	cmd := &cobra.Command{
		Use:   "inspect [KIND...]",
		Short: "Show the leftovers of deleted pods, and the proof",
		Long: `Compare the objects on this node with the pods that belong here, and show the leftovers of deleted
pods.

For each pod it prints its objects in the order of their release, the processes that hold them, why they are or are not
leftovers, what keeps their owner from removing them (if known), and the next step. It changes nothing. An object is a
leftover only after several passes; the running daemon remembers them, and so does this command. Objects of unknown
state are counted by cause; --wide lists each of them, and prints whole IDs.

--explain prints all that is known about one object: the answer of each witness and its time, each gate, the passes
that have seen it, missing evidence, and the effect of a release. Name the object by KIND/ID, or by a unique part of its
ID.

--record also writes the evidence to a file, for a bug report; --from evaluates such a file instead of this node, and
does not touch the node. The file contains no secrets, environments or arguments of programs. It contains names of pods
and namespaces, unless --anonymous replaces them; UIDs, paths and names of volumes stay.`,
		RunE: func(cmd *cobra.Command, kinds []string) error {
			selected, err := selectKinds(kinds)
			if err != nil {
				return err
			}
			return v.run(cmd, o, selected)
		},
	}
	v.flags(cmd)
	cmd.AddCommand(newInspectPod(o))
	return cmd
}

// The limits of one inspection: together with that of the pass, 15 s at most, even if a part hangs.
const (
	openLimit  = 4500 * time.Millisecond
	closeLimit = 500 * time.Millisecond
)

// bench is the interface that an inspection by hand uses.
type bench interface {
	Pass(ctx context.Context, kinds ...object.Kind) (object.Report, error)
	Close() error
}

// inspectOnce makes one inspection. If not even the layout of the node can be discovered in time, it reports that;
// calls that hang end with the process.
func inspectOnce(
	ctx context.Context, open func(context.Context) (bench, error), kinds []object.Kind) (object.Report, error) {
	hangs := fmt.Errorf("discovery of kubelet and the runtime hangs: no answer within %s", openLimit)
	limited, cancel := context.WithTimeoutCause(ctx, openLimit-host.ReplyGrace, hangs)
	defer cancel()
	b, err := host.Abandon(limited, func(context.Context) (bench, error) { return open(ctx) })
	if errors.Is(err, hangs) {
		return object.Report{At: host.Now(), Errors: []object.Failure{{What: "layout", Error: err.Error()}}}, nil
	}
	if err != nil {
		return object.Report{}, err
	}
	report, err := b.Pass(ctx, kinds...)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit-host.ReplyGrace)
	defer cancel()
	_, _ = host.Abandon(closing, func(context.Context) (any, error) { return nil, b.Close() }) // nothing was changed
	return report, err
}

// complete replaces nil lists by empty ones, so that the JSON has [] instead of null.
func complete(r object.Report) object.Report {
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

func selectKinds(names []string) ([]object.Kind, error) {
	var selected []object.Kind
	for _, name := range names {
		if !slices.Contains(kinds.Kinds(), object.Kind(name)) {
			return nil, fmt.Errorf("unknown kind of object %q; the kinds are %v", name, kinds.Kinds())
		}
		selected = append(selected, object.Kind(name))
	}
	return selected, nil
}

// hostGate is closed if the agent does not see the whole host. Then the list may be incomplete.
const hostGate = "host-namespaces"

// inspectExit: leftovers and candidates are problems; objects not evaluated or read mean "could not tell".
func inspectExit(r object.Report) error {
	has := func(verdicts ...object.Verdict) bool {
		return slices.ContainsFunc(r.Objects, func(o object.Assessment) bool {
			return slices.Contains(verdicts, o.Verdict)
		})
	}
	switch {
	case has(object.Leftover, object.Candidate, object.Unowned):
		return &exitError{Code: exitProblems}
	case has(object.Unknown) || len(r.Errors) > 0,
		slices.ContainsFunc(r.Gates, func(g object.Gate) bool { return g.Name == hostGate && !g.Open }):
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

func printReport(w io.Writer, r object.Report, settings release.Settings, all, wide bool) error {
	var b strings.Builder
	r = bundle.Printable(r)
	counts := map[object.Verdict]int{}
	var shown []object.Assessment
	for _, o := range r.Objects {
		counts[o.Verdict]++
		if all || o.Verdict == object.Leftover || o.Verdict == object.Candidate || o.Verdict == object.Unknown ||
			o.Verdict == object.Unowned {
			shown = append(shown, o)
		}
	}
	text := newInspectScreen(screenOf(w), r)
	text.settings = settings
	printInspected(&b, text, shown, r, wide)
	fmt.Fprintf(&b, "%d objects:", len(r.Objects))
	for _, verdict := range verdictOrder() {
		fmt.Fprintf(&b, " %d %s", counts[verdict], verdict)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// printInspected prints some of the objects of a report, and the reasons why it is incomplete. Unless it is wide, a
// cause is printed once, however many objects it makes unknown.
func printInspected(b *strings.Builder, text *inspectScreen, shown []object.Assessment, r object.Report, wide bool) {
	if wide {
		text.list(shown)
	} else {
		isUnknown := func(o object.Assessment) bool { return o.Verdict == object.Unknown }
		text.trees(slices.DeleteFunc(slices.Clone(shown), isUnknown))
		printUnknown(&text.Builder, slices.DeleteFunc(slices.Clone(shown), func(o object.Assessment) bool {
			return !isUnknown(o)
		}))
	}
	printed := func(cause string) bool {
		return !wide && cause != "" && strings.Contains(unwrapped(text.String()), unwrapped(cause))
	}
	var unread, closed []reason
	for _, e := range r.Errors {
		if !printed(e.Error) {
			unread = append(unread, reason{e.What, e.Error})
		}
	}
	text.reasons("could not inspect", unread, wide)
	for _, g := range r.Gates {
		why := g.Why
		if _, cause, ok := strings.Cut(why, ": "); ok && printed(cause) || printed(why) {
			why = "as above"
		}
		if !g.Open {
			closed = append(closed, reason{g.Name, why})
		}
	}
	text.reasons("gate closed:", closed, wide)
	for _, note := range r.Notes {
		text.WriteString(text.wrap("note: "+note, 0, 2) + "\n")
	}
	if wide {
		b.WriteString(text.String())
	} else {
		b.WriteString(wholeID.ReplaceAllString(text.String(), "$1"))
	}
}

// reason explains why a part of the inspection, or a gate, is not in order.
type reason struct{ name, why string }

// reasons prints reasons; equal ones once, unless it is wide.
func (p *inspectScreen) reasons(what string, all []reason, wide bool) {
	if wide {
		for _, of := range all {
			fmt.Fprintf(p, "%s %s: %s\n", what, of.name, of.why)
		}
		return
	}
	for _, same := range groupedBy(all, func(of reason) string { return of.why }) {
		var names []string
		for _, of := range same {
			names = append(names, of.name)
		}
		p.WriteString(p.wrap(what+" "+strings.Join(names, ", ")+": "+same[0].why, 0, 2) + "\n")
	}
}

// unwrapped undoes what screen.wrap does.
func unwrapped(text string) string { return strings.Join(strings.Fields(text), " ") }

// wholeID is the ID of a container or sandbox. crictl and ctr accept its first 13 digits.
var wholeID = regexp.MustCompile(`\b([0-9a-f]{13})[0-9a-f]{51}\b`)

// printUnknown counts the objects without any known fact, by the cause.
func printUnknown(b *strings.Builder, objects []object.Assessment) {
	for _, same := range groupedBy(objects, func(o object.Assessment) string { return o.Why }) {
		pods, found := map[string]bool{}, map[object.Kind]int{}
		for _, o := range same {
			pods[o.Pod.UID] = true
			found[o.Kind]++
		}
		var counts []string
		for _, kind := range kinds.Kinds() {
			if n := found[kind]; n > 0 {
				counts = append(counts, fmt.Sprintf("%s: %d", kind, n))
			}
		}
		fmt.Fprintf(b, "UNKNOWN %s (pods: %d; --wide lists them)\n      why: %s\n\n", strings.Join(counts, ", "),
			len(pods), same[0].Why)
	}
}

func podName(p object.Pod) string {
	name := strings.Trim(p.Namespace+"/"+p.Name, "/")
	switch {
	case name == "":
		return p.UID
	case p.UID == "":
		return name
	}
	return name + " (" + p.UID + ")"
}
