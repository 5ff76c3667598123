package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// madeUpBench has a plan and records the calls to it. Its releases succeed for all steps that act.
type madeUpBench struct {
	steps    []release.Step
	asked    []string
	agreed   []release.Step
	onRecord func(release.Record)
}

func (b *madeUpBench) Plan(context.Context, object.Report) ([]release.Step, error) {
	b.asked = append(b.asked, "plan")
	return b.steps, nil
}

func (b *madeUpBench) FreeState() error {
	b.asked = append(b.asked, "free")
	return nil
}

func (b *madeUpBench) Release(_ context.Context, _ object.Report, request release.Manual) (release.Outcome, error) {
	b.asked, b.agreed, b.onRecord = append(b.asked, "release"), request.Agreed, request.OnRecord
	var outcome release.Outcome
	for _, s := range b.steps {
		if request.OnRecord != nil {
			request.OnRecord(release.Record{Event: release.Intent, Group: s.Group, Pod: s.Pod, Kind: s.Kind, ID: s.ID,
				Does: s.Description})
			request.OnRecord(release.Record{Event: release.End, Group: s.Group, Pod: s.Pod, Kind: s.Kind, ID: s.ID,
				Result: release.Released})
		}
		outcome.Pods = append(outcome.Pods, release.PodOutcome{Group: s.Group, Pod: s.Pod, Result: release.Released,
			Steps: []release.StepOutcome{{Step: s, Result: release.Released}}})
	}
	return outcome, nil
}

// openTerminal returns a terminal and the side of it where a person sits.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	person = os.NewFile(uintptr(fd), "person")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		terminal.Close()
		person.Close()
	})
	return person, terminal
}

// openPipe returns a pipe that contains text; close out to let the reader see its end.
func openPipe(t *testing.T, text string) (in, out *os.File) {
	t.Helper()
	in, out, err := os.Pipe()
	if err == nil {
		_, err = out.WriteString(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		out.Close()
	})
	return in, out
}

func plannedStep(name, blocked string) release.Step {
	pod := object.Pod{UID: "uid-" + name, Namespace: "shop", Name: name}
	o := object.Object{Kind: object.Mount, ID: "/m/" + name + "#1", Pod: pod}
	guards := release.Guards{Pod: []release.Guard{{Name: "pause", Open: blocked == "", Why: blocked}}}
	return release.Step{Guards: guards, Group: pod.UID, Pod: pod, Kind: o.Kind, ID: o.ID, Description: "unmount " + o.ID,
		Blocked: blocked, Object: object.Assessment{Object: o, Verdict: object.Leftover}}
}

// cleaned is the result of a run of clean.
type cleaned struct {
	bench       *madeUpBench
	out, stderr string
	exit        int
	err         error
}

// cleanOn runs clean on a terminal on which typed has been entered; change adjusts the run.
func cleanOn(t *testing.T, typed string, change func(c *cleaning)) (all cleaned) {
	t.Helper()
	person, terminal := openTerminal(t)
	if _, err := person.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	all.bench = &madeUpBench{steps: []release.Step{plannedStep("web-0", ""), plannedStep("web-1", ""),
		plannedStep("web-2", "it is paused")}}
	report := object.Report{Objects: []object.Assessment{assessment("x", object.Leftover)}}
	var stderr strings.Builder
	c := cleaning{options: &options{output: "text"}, in: terminal, out: terminal, stderr: &stderr, bench: all.bench,
		report: report}
	change(&c)
	seen := make(chan string)
	go func() {
		var b strings.Builder
		_, _ = io.Copy(&b, person) // until the terminal is closed
		seen <- strings.ReplaceAll(b.String(), "\r\n", "\n")
	}()
	all.err = c.run(t.Context())
	all.exit = exitOf(all.err)
	if out, ok := c.out.(*os.File); ok {
		out.Close()
	}
	terminal.Close()
	all.out, all.stderr = <-seen, stderr.String()
	return all
}

const questionOfThese = "This releases 2 objects of 2 pods: shop/web-0 (uid-web-), shop/web-1 (uid-web-).\n" +
	"Release? Only y or yes does. [y/N] "

// A person at a terminal is asked once, after the plan. Only the answer yes releases anything.
func TestCleanAsks(t *testing.T) {
	const endOfInput = "\x04"
	for typed, want := range map[string]bool{
		"y\n": true, "yes\n": true, " y \n": true,
		"n\n": false, "no\n": false, "\n": false, "yes please\n": false, "yy\n": false, "n\ny\n": false, "\ny\n": false,
		endOfInput: false, "y" + endOfInput + endOfInput: false, endOfInput + "y\n": false,
	} {
		t.Run(fmt.Sprintf("%q", typed), func(t *testing.T) {
			got := cleanOn(t, typed, func(*cleaning) {})
			if strings.Count(got.out, questionOfThese) != 1 || !strings.Contains(got.out, "pod shop/web-0") ||
				strings.Index(got.out, "it is paused") > strings.Index(got.out, "[y/N]") {
				t.Error(got.out)
			}
			done, exit, text := []string{"plan", "free"}, exitProblems, "\nNothing was changed.\n"
			if want {
				done, text = append(done, "release"), "Gained: 3 objects, 3 mounts\n"
			}
			if diff := cmp.Diff(done, got.bench.asked); diff != "" || got.exit != exit && !want {
				t.Errorf("exit code %d, %v\n%s", got.exit, got.err, diff)
			}
			if !strings.Contains(got.out, text) || want == strings.Contains(got.out, "Nothing was changed") {
				t.Error(got.out)
			}
			if want && len(got.bench.agreed) != len(got.bench.steps) {
				t.Errorf("agreed to %v", got.bench.agreed)
			}
		})
	}
}

// If the plan cannot be seen or answered, or is empty, clean neither asks nor releases.
func TestCleanAsksNobody(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, c *cleaning)
		text   string // of the output, if it is the terminal
	}{
		"the input is no terminal": {func(t *testing.T, c *cleaning) {
			t.Helper()
			in, _ := openPipe(t, "y\n")
			c.in = in
		}, "Nothing was changed. To release it: nodeagent clean --yes\n"},
		"the input is no file": {func(_ *testing.T, c *cleaning) { c.in = strings.NewReader("y\n") },
			"Nothing was changed. To release it: nodeagent clean --yes\n"},
		"the output is no terminal": {func(t *testing.T, c *cleaning) {
			t.Helper()
			_, out := openPipe(t, "")
			c.out = out
		}, ""},
		"the output is no file": {func(_ *testing.T, c *cleaning) { c.out = &bytes.Buffer{} }, ""},
		"-o json":               {func(_ *testing.T, c *cleaning) { c.output = "json" }, `"steps"`},
		"nothing acts": {func(_ *testing.T, c *cleaning) {
			c.bench.(*madeUpBench).steps = []release.Step{plannedStep("web-2", "it is paused")}
		}, "Nothing was changed: none of it can be released now.\n"},
		"nothing is planned": {func(_ *testing.T, c *cleaning) { c.bench.(*madeUpBench).steps = nil },
			"Nothing is proven to be a leftover.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := cleanOn(t, "y\n", func(c *cleaning) { test.change(t, c) })
			if diff := cmp.Diff([]string{"plan"}, got.bench.asked); diff != "" || got.exit != exitProblems {
				t.Errorf("exit code %d, %v\n%s", got.exit, got.err, diff)
			}
			if !strings.Contains(got.out, test.text) || strings.Contains(got.out+got.stderr, "[y/N]") {
				t.Errorf("%s\n%s", got.out, got.stderr)
			}
		})
	}
}

// A plan that could not be printed is not asked about.
func TestCleanAsksAboutWhatIsSeen(t *testing.T) {
	got := cleanOn(t, "y\n", func(c *cleaning) {
		unwritable, err := os.Open(c.out.(*os.File).Name())
		if err != nil {
			t.Fatal(err)
		}
		c.out = unwritable
	})
	if diff := cmp.Diff([]string{"plan", "free"}, got.bench.asked); diff != "" || got.err == nil {
		t.Errorf("%v\n%s", got.err, diff)
	}
}

// A user who interrupts the question has not agreed, and does not have to answer.
func TestCleanInterruptedQuestion(t *testing.T) {
	_, terminal := openTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &madeUpBench{steps: []release.Step{plannedStep("web-0", "")}}
	err := cleaning{options: &options{output: "text"}, in: terminal, out: terminal, stderr: io.Discard,
		bench: b}.run(ctx)
	if diff := cmp.Diff([]string{"plan", "free"}, b.asked); diff != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("%v\n%s", err, diff)
	}
}

// --yes neither asks nor plans first. Progress goes to stderr; -o json prints exactly one document.
func TestCleanYes(t *testing.T) {
	got := cleanOn(t, "", func(c *cleaning) { c.yes = true })
	if diff := cmp.Diff([]string{"release"}, got.bench.asked); diff != "" || got.bench.agreed != nil {
		t.Errorf("agreed to %v\n%s", got.bench.agreed, diff)
	}
	want := `  begun       mount               /m/web-0#1: unmount
  released    mount               /m/web-0#1
  begun       mount               /m/web-1#1: unmount
  released    mount               /m/web-1#1
  begun       mount               /m/web-2#1: unmount
  released    mount               /m/web-2#1
`
	if diff := cmp.Diff(want, got.stderr); diff != "" {
		t.Error(diff)
	}
	got = cleanOn(t, "", func(c *cleaning) { c.yes, c.output = true, "json" })
	var document struct {
		Pods   []any           `json:"pods"`
		Gained release.Savings `json:"gained"`
	}
	if err := json.Unmarshal([]byte(got.out), &document); err != nil || got.stderr != "" || got.bench.onRecord != nil {
		t.Errorf("%v: %s\n%s", err, got.out, got.stderr)
	}
	if diff := cmp.Diff(release.Savings{Objects: 3, Mounts: 3}, document.Gained); diff != "" || len(document.Pods) != 3 {
		t.Errorf("%s\n%s", got.out, diff)
	}
}

func TestProgressText(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	pod := object.Pod{UID: deadUID, Namespace: "shop", Name: "web-0"}
	for want, r := range map[string]release.Record{
		"pod shop/web-0 (5d8d2d6a): the release begins": {Event: release.Begin, Group: deadUID, Pod: pod},
		"pod sandbox/0123456789abc: stopped: it is back": {Event: release.Finish, Group: "sandbox/" + id,
			Result: release.Stopped, Why: "it is back"},
		"  begun       sandbox             0123456789abc: stop and remove sandbox": {Event: release.Intent, Pod: pod,
			Kind: object.Sandbox, ID: id, Does: "stop and remove sandbox " + id},
		`  failed      mount               /m\u001b[31m: busy; at all`: {Event: release.End, Pod: pod,
			Kind: object.Mount, ID: "/m\x1b[31m", Result: release.Failed, Why: "busy; at all"},
		"  notice      quarantine          /q: it goes in a day": {Event: release.Notice, Kind: "quarantine", ID: "/q",
			Why: "it goes in a day"},
	} {
		if diff := cmp.Diff(want, progressText(r)); diff != "" {
			t.Error(diff)
		}
	}
}

// A reader of the progress may exit, as head does: the release goes on.
func TestCleanOutlivesItsReader(t *testing.T) {
	const child = "NODEAGENT_TEST_CLEAN"
	if os.Getenv(child) != "" {
		c := cleaning{options: &options{output: "text"}, yes: true, out: os.Stdout, stderr: os.Stderr,
			bench: &madeUpBench{steps: []release.Step{plannedStep("web-0", "")}}}
		if err := c.run(t.Context()); err != nil {
			t.Error(err)
		}
		return
	}
	reader, progress := openPipe(t, "")
	reader.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCleanOutlivesItsReader$")
	cmd.Env, cmd.Stderr = append(os.Environ(), child+"=1"), progress
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "Gained: 1 object, 1 mount\n") {
		t.Errorf("%v: %s", err, out)
	}
}
