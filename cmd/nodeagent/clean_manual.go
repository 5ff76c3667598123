package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// releaser is the part of a bench that plans and releases.
type releaser interface {
	Plan(ctx context.Context, report object.Report) ([]release.Step, error)
	Release(ctx context.Context, report object.Report, request release.Manual) (release.Outcome, error)
	FreeState() error
}

// cleaning is one run of nodeagent clean.
type cleaning struct {
	*options
	yes    bool // --yes
	wide   bool // --wide
	in     io.Reader
	out    io.Writer
	stderr io.Writer // progress
	bench  releaser
	report object.Report
}

// asks reports whether to ask a person, who must be able to see the plan and to answer.
func (c cleaning) asks() bool {
	return !c.yes && !c.json() && isTerminal(c.in) && isTerminal(c.out)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// run prints the plan or, if the user asked for it or agrees, releases.
func (c cleaning) run(ctx context.Context) error {
	if c.yes {
		return c.release(ctx, nil)
	}
	steps, err := c.bench.Plan(ctx, c.report)
	if err != nil {
		return err
	}
	due := slices.DeleteFunc(slices.Clone(steps), func(s release.Step) bool { return !s.Acts() })
	agreed := false
	switch {
	case !c.asks():
		err = c.printPlan(steps, "Nothing was changed. To release it: nodeagent clean --yes\n")
	case len(due) == 0:
		err = c.printPlan(steps, "Nothing was changed: none of it can be released now.\n")
	default:
		agreed, err = c.ask(ctx, steps, due)
	}
	switch {
	case err != nil:
		return err
	case agreed:
		return c.release(ctx, steps)
	}
	return inspectExit(c.report)
}

// ask prints the plan and asks a person whether to release it.
func (c cleaning) ask(ctx context.Context, steps, due []release.Step) (agreed bool, err error) {
	if err := errors.Join(c.bench.FreeState(), c.printPlan(steps, question(due))); err != nil { // the plan was not seen
		return false, err
	}
	if agreed, err = agrees(ctx, c.in); !agreed {
		fmt.Fprintln(c.out, "\nNothing was changed.")
	}
	return agreed, err
}

// question names the objects about to be released.
func question(due []release.Step) string {
	var pods []string
	for _, pod := range groupedBy(bundle.Printable(due), func(s release.Step) string { return s.Group }) {
		pods = append(pods, cmp.Or(shortPod(pod[0].Pod), pod[0].Group))
	}
	return wholeID.ReplaceAllString(fmt.Sprintf("This releases %s of %s: %s.\nRelease? Only y or yes does. [y/N] ",
		counted(len(due), "object", "objects"), counted(len(pods), "pod", "pods"), finding.JoinFirst(pods, 5)), "$1")
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// agrees reads one line. A line without an end is no answer.
func agrees(ctx context.Context, in io.Reader) (bool, error) {
	answers := make(chan string, 1) // the reader may have gone
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil {
			line = ""
		}
		answers <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case answer := <-answers:
		return answer == "y" || answer == "yes", nil
	}
}

// release releases and prints the result of each step; if agreed is nil, everything may be released. The exit code is 0
// only if no object is left over or unknown.
func (c cleaning) release(ctx context.Context, agreed []release.Step) error {
	request := release.Manual{Agreed: agreed, OnWait: func(why string) {
		fmt.Fprintf(c.stderr, "%s; waiting for it, at most %s\n", why, agent.LockWait)
	}}
	if !c.json() {
		// The reader of the progress may exit; the release goes on.
		broken := make(chan os.Signal, 1)
		signal.Notify(broken, syscall.SIGPIPE)
		defer signal.Stop(broken)
		request.OnRecord = func(r release.Record) { fmt.Fprintln(c.stderr, progressText(r)) }
	}
	outcome, err := c.bench.Release(ctx, c.report, request)
	if err != nil {
		return err
	}
	return c.answer(c.out, struct {
		release.Outcome
		Gained release.Savings `json:"gained"`
	}{outcome, outcome.Savings()}, func(w io.Writer) error { return printOutcome(w, c.report, outcome) },
		cleanExit(c.report, outcome))
}

// progressText describes a journal record when it is written.
func progressText(r release.Record) string {
	r = bundle.Printable(r)
	pod := "pod " + cmp.Or(shortPod(r.Pod), r.Group)
	text := ""
	switch r.Event {
	case release.Begin:
		text = pod + ": the release begins"
	case release.Finish:
		text = pod + ": " + string(r.Result)
	case release.Intent:
		text = fmt.Sprintf("  %-11s %-*s %s: %s", "begun", kindWidth, r.Kind, r.ID,
			withoutID(release.Step{ID: r.ID}, r.Does))
	default:
		text = fmt.Sprintf("  %-11s %-*s %s", cmp.Or(string(r.Result), string(r.Event)), kindWidth, r.Kind, r.ID)
	}
	if r.Why != "" {
		text += ": " + oneLine(r.Why)
	}
	return wholeID.ReplaceAllString(text, "$1")
}

// savingsText describes the resources that the node got back.
func savingsText(g release.Savings) string {
	var parts, unknown []string
	add := func(to *[]string, n int, one, many string) {
		if n > 0 {
			*to = append(*to, counted(n, one, many))
		}
	}
	add(&parts, g.Objects, "object", "objects")
	add(&parts, g.Processes, "process", "processes")
	add(&parts, g.Addresses, "address", "addresses")
	add(&parts, g.Leases, "lease of containerd", "leases of containerd")
	add(&parts, g.Mounts, "mount", "mounts")
	add(&parts, g.Cgroups, "cgroup", "cgroups")
	if g.Bytes > 0 {
		parts = append(parts, checkkit.SizeText(g.Bytes))
	}
	add(&unknown, g.BytesUnknown, "object's space", "objects' space")
	add(&unknown, g.AddressesUnknown, "attachment's addresses", "attachments' addresses")
	text := cmp.Or(strings.Join(parts, ", "), "nothing")
	if len(unknown) > 0 {
		text += "; not known: " + strings.Join(unknown, ", ")
	}
	return text
}
