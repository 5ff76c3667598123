package release

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// script is the release of one pod in which all around the runner is made up: what is on the node, the actions, the
// witnesses, the switches, and what goes wrong when. What happens is written down in trace, in order:
//
//	begin, intent K I, end K I RESULT, finish RESULT    lines of the journal
//	paused?, confirm, gone? UID                         questions
//	prepare K, do K I                                   changes
//	STOP                                                from here on nothing may be changed: see stop
type script struct {
	t        *testing.T
	host     *host.Host
	mutator  *mutate.Mutator
	settings Settings
	there    []object.Assessment // currently on the node
	trace    []string
	clock    finding.Timestamp
	cancel   func() // ends the agent

	prepare    func(ctx context.Context) error
	do         map[string]func(ctx context.Context) error         // by ID; nil: the object disappears
	gone       map[string]func(ctx context.Context) (bool, error) // by ID; nil: the truth
	needs      func(o object.Assessment, rest []object.Assessment) string
	confirm    func(ctx context.Context, n int, report *object.Report) error
	stillGone  func(ctx context.Context, n int) error
	paused     func(ctx context.Context, n int) (string, error)
	write      func(Record) error
	faultPoint func(point string) error
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{
		t: t, clock: now,
		host: &host.Host{Files: host.Files{Root: inMemory(t)}},
		do:   map[string]func(context.Context) error{}, gone: map[string]func(context.Context) (bool, error){},
	}
	s.host.Clock = func() finding.Timestamp { return s.clock }
	var err error
	if s.mutator, err = mutate.New(s.host, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.settings = Defaults()
	s.settings.Mode, s.settings.KillSwitch, s.settings.Lock = On, "/stop", filepath.Join(s.host.Files.Root, "lock")
	for _, o := range []struct {
		kind object.Kind
		id   string
	}{{object.Sandbox, "s"}, {object.Process, "1"}, {object.Process, "2"}, {object.Mount, "m"},
		{object.Cgroup, "c"}} {
		s.there = append(s.there, leftover(o.kind, uid1, o.id))
	}
	return s
}

// inMemory returns a directory in memory, where journal writes are fast.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nodeagent-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *script) say(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

// stop marks the time from which no change may be made.
func (s *script) stop() { s.say("STOP") }

func (s *script) count(event string) int {
	n := 0
	for _, line := range s.trace {
		if strings.HasPrefix(line, event) {
			n++
		}
	}
	return n
}

func (s *script) makeSwitch() {
	if err := os.WriteFile(s.host.Files.Path(s.settings.KillSwitch), nil, 0o600); err != nil {
		s.t.Error(err)
	}
}

func (s *script) isThere(o object.Assessment) bool {
	_, there := object.Find(s.there, o.Kind, o.ID)
	return there
}

func (s *script) remove(id string) {
	s.there = slices.DeleteFunc(s.there, func(o object.Assessment) bool { return o.ID == id })
}

func (s *script) change(id string, set func(o *object.Assessment)) {
	s.there = slices.Clone(s.there)
	for i := range s.there {
		if s.there[i].ID == id {
			s.there[i].Facts = maps.Clone(s.there[i].Facts)
			set(&s.there[i])
		}
	}
}

func (s *script) actions() (all actions.Table) {
	for _, kind := range []object.Kind{object.Sandbox, object.Process, object.Mount, object.Cgroup} {
		all = append(all, actions.Action{
			Kind: kind,
			Plan: func(o object.Assessment, _ actions.Settings) (string, string) {
				if o.IsDead() {
					return "", "it is dead"
				}
				return "release " + o.ID, o.Facts["refuse"]
			},
			Needs: func(o object.Assessment, rest []object.Assessment, _ actions.Settings) string {
				if s.needs == nil {
					return ""
				}
				return s.needs(o, rest)
			},
			Do: func(ctx context.Context, _ actions.Tools, o object.Assessment) error {
				s.say("do %s %s", kind, o.ID)
				if do := s.do[o.ID]; do != nil {
					return do(ctx)
				}
				s.remove(o.ID)
				return nil
			},
			Verify: func(ctx context.Context, _ actions.Tools, o object.Assessment) (bool, error) {
				if gone := s.gone[o.ID]; gone != nil {
					return gone(ctx)
				}
				return !s.isThere(o), nil
			},
		})
	}
	all[1].Prepare = func(ctx context.Context, t actions.Tools, _ []object.Assessment) error {
		s.say("prepare %s", object.Process)
		if err := t.FaultPoint("SIGTERM sent"); err != nil {
			return err
		}
		if s.prepare != nil {
			return s.prepare(ctx)
		}
		return nil
	}
	return all
}

func (s *script) runner() *Runner {
	s.t.Helper()
	r, err := New(Options{
		Settings: s.settings, Host: s.host, Mutator: s.mutator, Log: slog.New(slog.DiscardHandler),
		StateDir: filepath.Join(s.host.Files.Root, "state"), faultPoint: s.faultPoint, table: s.actions(),
		Confirm: func(ctx context.Context, _ string) (object.Report, error) {
			s.say("confirm")
			report := s.report()
			if s.confirm == nil {
				return report, nil
			}
			err := s.confirm(ctx, s.count("confirm"), &report)
			return report, err
		},
		StillGone: func(ctx context.Context, pod object.Pod) error {
			s.say("gone? %s", pod.UID)
			if s.stillGone == nil {
				return nil
			}
			return s.stillGone(ctx, s.count("gone?"))
		},
		Paused: func(ctx context.Context) (string, error) {
			s.say("paused?")
			if s.paused == nil {
				return "", nil
			}
			return s.paused(ctx, s.count("paused?"))
		},
		onWrite: func(r Record) error {
			s.say("%s", strings.Join(strings.Fields(fmt.Sprint(r.Event, " ", r.Kind, " ", r.ID, " ", r.Result)), " "))
			if s.write == nil {
				return nil
			}
			return s.write(r)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *script) report() object.Report {
	return object.Report{At: s.clock, Objects: slices.Clone(s.there)}
}

// release runs a release in a bubble of time, and checks the invariants of every release.
func (s *script) release() (outcome Outcome, err error) {
	s.t.Helper()
	synctest.Test(s.t, func(t *testing.T) {
		outcome, err = s.runner().Release(t.Context(), s.report())
	})
	s.invariants(outcome, err)
	return outcome, err
}

// pod is the outcome of the pod.
func (s *script) pod() PodOutcome {
	s.t.Helper()
	outcome, err := s.release()
	if err != nil || len(outcome.Pods) != 1 {
		s.t.Fatalf("%v: %s\n%s", err, describe(outcome), s)
	}
	return outcome.Pods[0]
}

// done lists the changes.
func (s *script) done() (all []string) {
	for _, line := range s.trace {
		if what, ok := strings.CutPrefix(line, "do "); ok {
			all = append(all, what)
		}
		if strings.HasPrefix(line, "prepare") {
			all = append(all, line)
		}
	}
	return all
}

func (s *script) String() string { return "  " + strings.Join(s.trace, "\n  ") }

// invariants hold after each release, whatever failed in it.
func (s *script) invariants(outcome Outcome, err error) {
	s.t.Helper()
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	open := map[string]bool{}
	stopped, confirmed := false, false
	for i, line := range s.trace {
		event, about, _ := strings.Cut(line, " ")
		switch event {
		case "STOP":
			stopped = true
		case "confirm":
			confirmed = true
		case "begin":
			open = map[string]bool{}
			confirmed = false
		case "intent":
			open[about] = true
		case "end":
			about = about[:strings.LastIndex(about, " ")]
			if !open[about] && !strings.HasSuffix(line, " interrupted") { // those of a crash belong to another trace
				bad("%q without an intent", line)
			}
			delete(open, about)
		case "do", "prepare":
			if stopped {
				bad("%q after the stop", line)
			}
			if !confirmed {
				bad("%q was not confirmed", line)
			}
			if event == "do" && !open[about] {
				bad("%q without an intent", line)
			}
			if !strings.HasPrefix(s.trace[i-1], "gone?") {
				bad("%q without asking right before whether the pod has come back", line)
			}
		}
	}
	if err == nil && len(open) > 0 {
		bad("intents without an end: %v", slices.Collect(maps.Keys(open)))
	}
	for _, pod := range outcome.Pods {
		if pod.Result == Released {
			s.releasedIsTrue(bad)
		}
		for _, step := range pod.Steps {
			if err == nil && step.Result == "" {
				bad("step %s %s has no result", step.Kind, step.ID)
			}
		}
	}
	if err == nil && s.count("begin") > 0 {
		records, skipped, err := ReadJournal(filepath.Join(s.host.Files.Root, "state"))
		if cut := unfinished(records); err != nil || skipped > 0 || len(cut) > 0 {
			bad("journal: %v, %d lines skipped, cut off %+v", err, skipped, cut)
		}
	}
	if len(problems) > 0 {
		s.t.Errorf("%s\n%s\n%s", strings.Join(problems, "\n"), describe(outcome), s)
	}
}

// releasedIsTrue checks that no object of the pod is left, and that this was verified after the last change.
func (s *script) releasedIsTrue(bad func(string, ...any)) {
	for _, o := range s.there {
		if Group(o.Object) == uid1 && !o.IsDead() {
			bad("released, and %s %s is there", o.Kind, o.ID)
		}
	}
	last := ""
	for _, line := range s.trace {
		if event, _, _ := strings.Cut(line, " "); event == "do" || event == "confirm" {
			last = event
		}
	}
	if last != "confirm" {
		bad("released without an inspection after the last change")
	}
}

var errScript = errors.New("as the script says")

// hang is a call that ends when its context does.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
