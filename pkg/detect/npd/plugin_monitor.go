package npd

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	cpmtypes "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
)

// pluginMonitor is one custom plugin monitor.
type pluginMonitor struct {
	file     File
	id       string
	settings Settings
	native   native
	rules    []*pluginRule
	slots    chan struct{} // each running plugin takes one: as many as the file allows at a time
}

// pluginRule is one rule with its newest answer.
type pluginRule struct {
	*cpmtypes.CustomRule
	index   int
	ask     func(ctx context.Context, h *host.Host) plugin.Result
	timeout time.Duration
	every   time.Duration
	covered string // the native check that covers this rule; empty if the rule is run

	mu     sync.Mutex // guards all below
	asked  time.Duration
	answer *plugin.Result // nil before the first run
	runs   int
}

func newPluginMonitor(f File, id string, s Settings, o native) (*pluginMonitor, error) {
	g := f.Plugin.PluginGlobalConfig
	m := &pluginMonitor{file: f, id: id, settings: s, native: o, slots: make(chan struct{}, *g.Concurrency)}
	for i, r := range f.Plugin.Rules {
		rule := &pluginRule{CustomRule: r, index: i, timeout: *g.Timeout, every: *g.InvokeInterval}
		if r.Timeout != nil && *r.Timeout > 0 && *r.Timeout < rule.timeout {
			rule.timeout = *r.Timeout
		}
		if err := m.prepare(rule); err != nil {
			return nil, err
		}
		m.rules = append(m.rules, rule)
	}
	return m, nil
}

// prepare selects what answers a rule: a native check, the agent's own counter of journal entries, or the plugin.
func (m *pluginMonitor) prepare(r *pluginRule) error {
	switch base := path.Base(r.Path); {
	case base == "health-checker" && !m.settings.RunHealthChecker:
		if check, ok := m.native.find(healthCheckOf(r.Args)); ok {
			if check.Condition.Type == r.Condition && r.Type != types.Temp {
				r.covered = check.ID
			}
			r.ask = m.native.answer(check.ID)
			return nil
		}
	case base == "log-counter":
		c, err := newCounter(r.Args)
		if err != nil {
			return m.file.at(problem{err.Error(), steps("rules", r.index, "args")})
		}
		c.limit = *m.file.Plugin.PluginGlobalConfig.MaxOutputLength
		r.ask = func(ctx context.Context, h *host.Host) plugin.Result {
			ctx, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			return c.count(ctx, h)
		}
		return nil
	}
	p := &plugin.Plugin{Name: r.Path, Timeout: r.timeout,
		MaxOutput: min(*m.file.Plugin.PluginGlobalConfig.MaxOutputLength, maxOutputLength)}
	r.ask = func(ctx context.Context, h *host.Host) plugin.Result {
		p.Command = m.command(r, h) // each time: the plugin may be installed after the file
		return p.Run(ctx)
	}
	return nil
}

// command finds the program of a rule. node-problem-detector resolves a relative path from its working directory.
func (m *pluginMonitor) command(r *pluginRule, h *host.Host) program.Command {
	names := m.file.programs(r.Path, m.settings)
	name := names[0] // its absence is then reported
	for _, n := range names {
		if list, err := h.Files.List(filepath.Dir(n)); err == nil && slices.Contains(list, filepath.Base(n)) {
			name = n
			break
		}
	}
	dir := m.settings.Directory
	if !filepath.IsAbs(r.Path) {
		dir = strings.TrimSuffix(name, string(filepath.Separator)+filepath.Clean(r.Path))
	}
	return program.Command{Path: name, Args: r.Args, Dir: dir}
}

// due returns the rules that are due.
func due(rules []*pluginRule, now time.Duration) []*pluginRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r *pluginRule) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		// The engine's grid begins a run up to half a step early, rarely more: it is not skipped.
		return r.answer != nil && now-r.asked < r.every-max(r.every/10, min(r.every/2, 6*time.Second))
	})
}

// run runs the due rules, as many at a time as the file allows.
func (m *pluginMonitor) run(ctx context.Context, h *host.Host, rules []*pluginRule) {
	now := h.Clock().SinceBoot
	var wg sync.WaitGroup
	for _, r := range due(rules, now) {
		select {
		case m.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-m.slots }()
			answer := r.ask(ctx, h)
			if ctx.Err() != nil && answer.Status == plugin.Unknown {
				return // the agent exits; not a fault of the plugin
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked, r.answer = now, &answer
			r.runs++
		})
	}
	wg.Wait()
}

// newest returns the newest answer of a rule, and how often it was run. An unknown or missing answer is an error.
func (r *pluginRule) newest() (answer plugin.Result, runs int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer == nil {
		return answer, 0, fmt.Errorf("%s: it has not been run yet", r.Path)
	}
	if answer = *r.answer; answer.Status == plugin.Unknown {
		err = fmt.Errorf("%s: %s", r.Path, cmp.Or(answer.Message, answer.Stderr, "it returned no result"))
	}
	return answer, r.runs, err
}

// interval is the shortest interval of some rules.
func interval(rules []*pluginRule) time.Duration {
	if len(rules) == 0 {
		return time.Minute // no rule to run
	}
	every := rules[0].every
	for _, r := range rules {
		every = min(every, r.every)
	}
	return max(every, time.Second)
}

// deadline is the time limit of a run: the plugins of the file wait for each other.
func (m *pluginMonitor) deadline() time.Duration {
	var sum, longest time.Duration
	for _, r := range m.rules {
		sum += r.timeout + 2*time.Second // the time to kill it
		longest = max(longest, r.timeout)
	}
	return max(sum/time.Duration(cap(m.slots)), longest) + longest + 5*time.Second
}

// base has the common fields of all checks of the file.
func (m *pluginMonitor) base(id string, rules []*pluginRule) detect.Check {
	var reads []string
	for _, r := range rules {
		reads = append(reads, r.Path)
	}
	slices.Sort(reads)
	return detect.Check{
		ID: id, Domain: domain, Every: interval(rules), Deadline: m.deadline(),
		Advice: "the plugin and its message come from " + m.file.Name + "; run it by hand for details.",
		Doc: detect.Doc{
			Reads: slices.Compact(reads),
			Why:   "A rule of a custom plugin monitor of node-problem-detector: " + m.file.Name + ".",
		},
	}
}
