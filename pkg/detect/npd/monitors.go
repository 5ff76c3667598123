package npd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Deps are the dependencies of the monitors.
type Deps struct {
	Host   *host.Host
	Log    *slog.Logger
	Memory detect.StateStore // nil: no state is kept across restarts

	// Own are the agent's own checks, and Believed returns the state of one. Both may be nil.
	Own      []detect.Check
	Believed func(check string) (finding.CheckState, bool)

	// Happened counts problems that are not reported individually; it may be nil.
	Happened func(reason string, n int)
	// Follow runs a program that writes lines until it is stopped; program.Follow unless set.
	Follow func(ctx context.Context, c program.Command, lines program.Lines) error
}

// Monitors are the monitors of all files.
type Monitors struct {
	deps     Deps
	settings Settings
	files    []File
	logs     []*logMonitor
	kernel   []*kernelFeed
	sources  []detect.Source
	checks   []detect.Check
	wordings map[string]finding.Wording
	states   []func(boot string, always bool) // functions that save state

	mu   sync.Mutex // guards wake
	wake func(detect.Change)
}

// relay is the source through which monitors wake their checks.
const relay detect.WakeSource = "npd"

// New creates the monitors of files. The check "npd-files" reports a doubtful file, and the conditions of a
// DoubtError are unknown.
func New(files []File, broken []error, s Settings, d Deps) *Monitors {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Happened == nil {
		d.Happened = func(string, int) {}
	}
	if d.Follow == nil {
		d.Follow = program.Follow
	}
	m := &Monitors{deps: d, settings: s, files: files, wordings: map[string]finding.Wording{}}
	ids := map[string]bool{}
	taken := func(id string) bool { return ids[id] }
	for _, f := range files {
		id := unique(idOf(f.Name), taken)
		ids[id] = true
		if err := m.add(f, id); err != nil {
			broken = append(broken, &DoubtError{f, fmt.Errorf("%s: %w", f.Name, err)})
		}
	}
	for _, err := range broken {
		if e, ok := errors.AsType[*DoubtError](err); ok {
			id := unique(idOf(e.File.Name), taken)
			ids[id] = true
			m.addDoubt(e, id)
		}
	}
	m.addJournals()
	if len(files) > 0 || len(broken) > 0 {
		m.checks = append(m.checks, filesCheck(broken))
		m.sources = append(m.sources, detect.Source{Name: relay, Run: m.relay})
	}
	return m
}

func (m *Monitors) add(f File, id string) error {
	o := native{m.deps.Own, m.deps.Believed}
	var checks []detect.Check
	var source string
	switch f.Kind {
	case LogMonitor:
		l, err := m.addLog(f, id)
		if err != nil {
			return err
		}
		checks, source = l.checks(o), f.Log.Source
	case PluginMonitor:
		p, err := newPluginMonitor(f, id, m.settings, o)
		if err != nil {
			return err
		}
		checks, source = p.checks(), f.Plugin.Source
	}
	for _, c := range checks {
		m.wordings[c.ID] = finding.Wording{Source: source, Condition: c.Condition}
	}
	m.checks = append(m.checks, checks...)
	return nil
}

// unique returns a name, with a number if it is taken.
func unique(name string, taken func(string) bool) string {
	numbered := name
	for n := 2; taken(numbered); n++ {
		numbered = fmt.Sprintf("%s-%d", name, n)
	}
	return numbered
}

// Checks returns the checks of all files.
func (m *Monitors) Checks() []detect.Check { return m.checks }

// Sources returns their sources of wakes.
func (m *Monitors) Sources() []detect.Source { return m.sources }

// Wordings returns the wording of findings in events, by check.
func (m *Monitors) Wordings() map[string]finding.Wording { return m.wordings }

// Reasons returns, by condition, the reasons of all rules; those of temporary problems are under no condition. A file
// may disable the metrics of its problems.
func (m *Monitors) Reasons() map[string][]string {
	reasons := map[string][]string{}
	add := func(metrics *bool, kind types.Type, condition, reason string) {
		if metrics != nil && !*metrics {
			return
		}
		if kind == types.Temp {
			condition = ""
		}
		reasons[condition] = append(reasons[condition], reason)
	}
	for _, f := range m.files {
		switch f.Kind {
		case LogMonitor:
			for _, r := range f.Log.Rules {
				add(f.Log.EnableMetricsReporting, r.Type, r.Condition, r.Reason)
			}
		case PluginMonitor:
			for _, r := range f.Plugin.Rules {
				add(f.Plugin.EnableMetricsReporting, r.Type, r.Condition, r.Reason)
			}
		}
	}
	return reasons
}

// relay forwards the wakes of monitors while the engine runs, and saves the states at the end.
func (m *Monitors) relay(ctx context.Context, wake func(detect.Change)) error {
	m.mu.Lock()
	m.wake = wake
	m.mu.Unlock()
	wake(detect.Change{}) // for problems from before the engine started
	<-ctx.Done()
	m.mu.Lock()
	m.wake = nil
	m.mu.Unlock()
	for _, save := range m.states {
		save(m.deps.Host.Clock().Boot, true)
	}
	return nil
}

func (m *Monitors) wakeCheck(check string) {
	m.mu.Lock()
	wake := m.wake
	m.mu.Unlock()
	if wake != nil {
		wake(detect.Change{Checks: []string{check}})
	}
}

// addLog creates a log monitor and its feed.
func (m *Monitors) addLog(f File, id string) (*logMonitor, error) {
	l, err := newLogMonitor(f, id, m.settings)
	if err != nil {
		return nil, err
	}
	l.wake, l.happened = m.wakeCheck, m.deps.Happened
	l.up = func() time.Duration { return m.deps.Host.Clock().SinceBoot }
	was := m.deps.recall(id)
	l.restore(was)
	m.logs = append(m.logs, l)
	switch f.Log.Plugin {
	case kmsgPlugin:
		m.addKernel(l, was)
	case filelogPlugin:
		return l, m.addFile(l, was)
	}
	return l, nil
}

// remember makes the checks of l, and the end of the agent, save the held problems of l together with its position.
func (m *Monitors) remember(l *logMonitor, place func(*saved)) {
	l.save = func(boot string, always bool) {
		s, moved := l.snapshot(boot)
		if !moved && !always {
			return
		}
		place(&s)
		m.deps.state(l.id).Save(s)
	}
	m.states = append(m.states, l.save)
}
