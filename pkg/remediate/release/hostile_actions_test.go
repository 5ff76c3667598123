package release

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// actions are the real ones with a simulated effect.
func (n *hostile) actions() (all actions.Table) {
	for _, a := range actions.All() {
		if !slices.Contains(simulatedKinds, a.Kind) {
			continue
		}
		a.Look, a.Prepare = nil, nil
		a.Do = n.act
		a.Verify = func(_ context.Context, _ actions.Tools, o object.Assessment) (bool, error) {
			if !n.calm && n.rng.Float64() < n.faults.errors {
				return false, errors.New("simulated: nobody can say")
			}
			return !n.has(o), nil
		}
		all = append(all, a)
	}
	return all
}

// act does the requested action to the tree, after comparing it with the tree's real state.
func (n *hostile) act(_ context.Context, _ actions.Tools, o object.Assessment) error {
	p, ok := n.pods[o.Pod.UID]
	if !ok || !n.has(o) {
		return mutate.ErrChanged // the real Mutator compares the identity right before the call
	}
	n.acts++
	switch {
	case p.life.alive():
		n.violate("%s %s of %s pod %s was touched", o.Kind, o.ID, p.life, p.name)
	case n.stopped:
		n.violate("%s %s was touched although the kill switch is there", o.Kind, o.ID)
	case n.intent != string(o.Kind)+" "+o.ID:
		n.violate("%s %s was touched, and the last intent is of %q", o.Kind, o.ID, n.intent)
	}
	if p.runs {
		n.released[p.uid] = true
	}
	if len(n.released) > 1 {
		n.violate("%d pods that ran were touched in one release", len(n.released))
	}
	lies := !n.calm && n.rng.Float64() < n.faults.dishonest
	if !lies {
		n.take(p, o)
	}
	if !n.calm && n.rng.Float64() < n.faults.unreliable {
		return []error{errors.New("simulated: failed"), mutate.ErrBusy, mutate.ErrChanged,
			mutate.Refusal{Why: "simulated"}}[n.rng.IntN(4)]
	}
	return nil
}

// take removes an object from the node.
func (n *hostile) take(p *simPod, o object.Assessment) {
	switch o.Kind {
	case object.Sandbox:
		p.sandbox, p.container, p.runs = "", "", false
	case object.Container:
		p.container, p.runs = "", false
	case object.Process:
		pid, _ := strconv.Atoi(o.ID)
		delete(p.pids, pid)
		n.remove("/proc/" + o.ID)
	case object.Mount:
		delete(p.mounts, o.Identity.Mount.ID)
		n.table()
	case object.Cgroup:
		if n.populated(p) {
			return // EBUSY
		}
		p.cgroups = slices.DeleteFunc(p.cgroups, func(c string) bool { return mount.Below("/sys/fs/cgroup"+c, o.ID) })
		n.remove(o.ID)
	case object.PodDirectory:
		if len(p.mounts) > 0 {
			n.violate("the directory of pod %s was removed with mounts in it", p.name)
		}
		p.dir = false
		n.remove(o.ID)
	}
}

func (n *hostile) populated(p *simPod) bool { return len(p.pids) > 0 }

// has reports whether an inspected object still exists with the same identity.
func (n *hostile) has(o object.Assessment) bool {
	p, ok := n.pods[o.Pod.UID]
	if !ok {
		return false
	}
	switch o.Kind {
	case object.Sandbox:
		return p.sandbox == o.ID
	case object.Container:
		return p.container == o.ID
	case object.Process:
		pid, _ := strconv.Atoi(o.ID)
		return p.pids[pid] != 0 && p.pids[pid] == o.Identity.Process.StartTime
	case object.Mount:
		return p.mounts[o.Identity.Mount.ID] != ""
	}
	_, err := n.host.Files.Stat(o.ID)
	return err == nil
}

// runner is the real one, with this node's actions.
func (n *hostile) runner(inspector func() object.Report) *Runner {
	n.t.Helper()
	r, err := New(Options{
		Settings: Settings{
			StopAfter: 1000,
			Mode:      On, PodsPerHour: 1000, KillSwitch: "/stop", Lock: filepath.Join(n.root, "lock"),
			VerifyWithin: time.Nanosecond,
		},
		Host: n.host, Mutator: &mutate.Mutator{}, Log: slog.New(slog.DiscardHandler),
		StateDir: filepath.Join(n.root, "state"),
		Confirm: func(ctx context.Context, _ string) (object.Report, error) {
			if err := n.called(ctx); err != nil {
				return object.Report{}, err
			}
			return inspector(), nil
		},
		StillGone: inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler)).StillGone,
		Paused:    func(ctx context.Context) (string, error) { return "", n.called(ctx) },
		table:     n.actions(),
		onWrite: func(r Record) error {
			if r.Event == Intent {
				n.intent = string(r.Kind) + " " + r.ID
			}
			return nil
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	r.swept.due(n.clock()) // the quarantine is the real machine's
	return r
}

func (n *hostile) settings() object.Settings {
	s := object.DefaultSettings()
	s.HostNamespaces = true
	return s
}

// run lets the agent work on the node for 40 minutes: a pass and a release every five.
func (n *hostile) run() {
	history := object.History{}
	inspector := inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler))
	for range 8 {
		n.now += 5 * time.Minute
		report, next := inspector.Pass(n.t.Context(), history, simulatedKinds...)
		history = next
		n.released = map[string]bool{}
		outcome, err := n.runner(func() object.Report {
			confirming, _ := inspect.New(n.host, n.settings(), slog.New(slog.DiscardHandler)).Pass(n.t.Context(),
				history, simulatedKinds...)
			return confirming
		}).Release(n.t.Context(), report)
		if err != nil {
			n.violate("release: %v", err)
		}
		n.audit(outcome)
	}
}

// audit compares the outcome of a release with the real state.
func (n *hostile) audit(outcome Outcome) {
	for _, pod := range outcome.Pods {
		if p := n.pods[pod.Group]; p != nil && pod.Result == Released && !p.empty() {
			n.violate("is said to be released: %s", p)
		}
	}
	records, _, err := ReadJournal(filepath.Join(n.root, "state"))
	if err != nil || len(unfinished(records)) > 0 {
		n.violate("journal: %v, unfinished %+v", err, unfinished(records))
	}
}
