package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/hostns"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// inspector makes passes, and reports whether the next one may be skipped: see inspect.Inspector.
type inspector interface {
	Rests(ctx context.Context) bool
	Pass(ctx context.Context, history object.History, only ...object.Kind) (object.Report, object.History)
}

// leftovers inspects the node as a check, keeps the history of passes and passes proven leftovers to the runner.
type leftovers struct {
	every     time.Duration
	host      *host.Host
	log       *slog.Logger
	meter     *metrics.Metrics
	inspector inspector
	found     []finding.Finding // by the last pass; they hold while the inspector rests
	runner    *release.Runner
	mode      release.Mode
	memory    store.Bucket
	activity  *activities
	work      chan object.Report // size 1, the newest report: a release may take minutes, and older reports are outdated

	quarantine quarantine
	deletions  deletions
	report     atomic.Pointer[object.Report] // of the last pass, without the objects of living pods
	podsEnded  atomic.Pointer[uint64]        // since the start; nil before the first complete inspection

	mu      sync.Mutex // guards the fields below
	history object.History
	done    []string // by the last release that ran a step
	planned []string // steps that the last release did not run
}

const historyKey = "history"

func newLeftovers(cfg config.Config, log *slog.Logger, clients *Clients, store *store.Store,
	state detect.StateStore) (*leftovers, error) {
	l := &leftovers{
		every: cfg.Inspect.Every, host: clients.Host, log: log, mode: cfg.Remediate.Mode,
		memory:    store.Bucket("inspect"),
		inspector: newInspector(cfg, clients, log), work: make(chan object.Report, 1), history: object.History{},
	}
	l.activity = newActivities(state, log, cfg.StateDir, clients.Host.Clock())
	if data, ok := l.memory.Get(historyKey); ok {
		if err := json.Unmarshal(data, &l.history); err != nil {
			log.Error("load the history of inspections failed: beginning a new one", "err", err)
		}
	}
	runner, err := newRunner(cfg, clients, log, l.copyHistory)
	l.runner = runner
	return l, err
}

func newInspector(cfg config.Config, clients *Clients, log *slog.Logger) *inspect.Inspector {
	settings := cfg.Inspect
	settings.HostNamespaces = hostns.SeesHost(clients.Host.Paths.InitPID) == nil
	for _, kind := range kinds.Kinds() {
		if kinds.Of(kind).OptIn && cfg.Remediate.ModeOf(kind) == release.On {
			settings.OptedIn = append(settings.OptedIn, kind)
		}
	}
	settings.OptOutPods = cfg.Remediate.OptOutPods
	return inspect.New(clients.Host, settings, log)
}

// check is the inspection as a check: one finding for each pod that left something behind.
func (l *leftovers) check() detect.Check {
	return detect.Check{
		ID: leftoversCheck, Domain: "kubernetes", Every: l.every, Deadline: time.Minute,
		Summary: "deleted pods left objects behind that make the next pods fail",
		Advice:  "`nodeagent inspect` shows the proof, `nodeagent clean` the steps of a release.",
		Doc: detect.Doc{
			Reads: []string{"containers, processes, mounts, cgroups and network of the node, kubelet's pods, and " +
				"the apiserver's list if an object is suspicious"},
			Why: "The names, addresses, devices and memory that a deleted pod still holds are missing to the next " +
				"one, which waits in ContainerCreating.",
			Faults: []detect.Fault{{Reason: "PodLeftovers", Severity: finding.Warning,
				When: "every witness agrees, several times over minutes, that the pod of an object is gone"},
				unownedFault, gateFault},
		},
		Run: func(ctx context.Context, _ *host.Host) ([]finding.Finding, error) { return l.run(ctx) },
	}
}

func (l *leftovers) run(ctx context.Context) ([]finding.Finding, error) {
	if l.host.Kubelet.Pods == nil {
		return nil, finding.NotApplicable("no kubelet on this host")
	}
	if l.inspector.Rests(ctx) {
		return slices.Clone(l.found), nil
	}
	l.mu.Lock()
	history := l.history
	l.mu.Unlock()
	report, next := l.inspector.Pass(ctx, history)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("inspect the node: %w", ctx.Err())
	}
	unread := passError(report)
	l.count(report, unread == nil)
	l.activity.inspected(report)
	suspicious := report.Suspicious()
	l.remember(history, suspicious, next)
	if !slices.ContainsFunc(suspicious.Objects, func(a object.Assessment) bool {
		return a.Verdict == object.Leftover
	}) {
		report = suspicious // the objects of living pods take megabytes, and none is released
	}
	select { // the newest report replaces one not yet taken
	case <-l.work:
	default:
	}
	l.work <- report
	l.found = slices.Concat(leftoverFindings(report), unownedFindings(report, l.host.NodeName), gateFindings(report))
	return slices.Clone(l.found), unread
}

func (l *leftovers) remember(old object.History, report object.Report, history object.History) {
	l.report.Store(&report)
	l.mu.Lock()
	l.history = history
	l.mu.Unlock()
	if len(old) == 0 && len(history) == 0 {
		return
	}
	data, err := json.Marshal(history)
	if err == nil {
		err = l.memory.Put(historyKey, data)
	}
	if err != nil {
		l.log.Error("save the history of inspections failed", "err", err)
	}
}

// count adds a pass to the metrics; complete means that everything could be read and evaluated.
func (l *leftovers) count(report object.Report, complete bool) {
	counts := map[metrics.Leftover]int{}
	for i := range report.Objects {
		if o := &report.Objects[i]; o.Verdict != object.Live && o.Verdict != object.Foreign {
			counts[metrics.Leftover{Kind: string(o.Kind), Verdict: string(o.Verdict)}]++
		}
	}
	l.meter.Leftovers(counts)
	m := measure(report, complete, l.host.Clock())
	m.Ended, m.Left = l.deletions.observe(report, complete)
	if complete {
		ended := uint64(m.Ended)
		if last := l.podsEnded.Load(); last != nil {
			ended += *last
		}
		l.podsEnded.Store(&ended)
	}
	l.meter.Inspected(m)
}

// leftoverFindings returns one finding for each pod with leftovers.
func leftoverFindings(report object.Report) []finding.Finding {
	byPod := map[string][]object.Assessment{}
	for _, o := range report.Objects {
		if o.Verdict == object.Leftover {
			group := release.Group(o.Object)
			byPod[group] = append(byPod[group], o)
		}
	}
	var findings []finding.Finding
	for _, group := range slices.Sorted(maps.Keys(byPod)) {
		findings = append(findings, leftoverFinding(group, byPod[group]))
	}
	return findings
}

func leftoverFinding(group string, objects []object.Assessment) finding.Finding {
	counts := map[string]int{}
	pod := object.Pod{UID: group}
	severity := finding.Info // of minor kinds
	for _, o := range objects {
		counts[string(o.Kind)]++
		if !kinds.Of(o.Kind).Minor() {
			severity = finding.Warning
		}
		if o.Pod.Name != "" {
			pod = o.Pod
		}
	}
	subject := podSubject(pod, group)
	return finding.Finding{
		Subject: subject, Severity: severity, Reason: "PodLeftovers",
		Message: fmt.Sprintf("pod %s (%s) is gone and left behind: %s", subject.Name, subject.UID, countText(counts)),
	}
}

// passError returns why a pass could not be evaluated in full. While anything is unknown, the absence of a leftover is
// no proof.
func passError(report object.Report) error {
	var problems []error
	lacks := map[finding.Access]bool{}
	for _, e := range report.Errors {
		if kinds.Of(object.Kind(e.What)).ReportOnly != "" { // report-only kinds decide no release
			continue
		}
		problems = append(problems, fmt.Errorf("%s: %s", e.What, e.Error))
		if e.Access == nil {
			e.Access = &finding.Access{}
		}
		lacks[*e.Access] = true
	}
	unknown := 0
	for i := range report.Objects {
		if o := &report.Objects[i]; o.Verdict == object.Unknown && kinds.Of(o.Kind).ReportOnly == "" {
			unknown++
		}
	}
	if unknown > 0 {
		problems = append(problems, fmt.Errorf("%d objects could not be evaluated", unknown))
	}
	err := errors.Join(problems...)
	for lack := range lacks {
		if len(lacks) == 1 && lack != (finding.Access{}) { // this access would make everything known
			return &finding.AccessError{Err: err, Access: lack}
		}
	}
	return err
}

// Run releases the leftovers that inspections have proven, as far as the mode permits.
func (l *leftovers) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case report := <-l.work:
			outcome, err := l.runner.Release(ctx, report)
			if err != nil {
				l.log.Error("release failed", "err", err)
			}
			l.record(outcome)
			l.activity.released(outcome, l.host.Clock())
			l.quarantine.count(ctx, l, outcome.Acted())
		}
	}
}

// record keeps the last completed steps and the current plan for the status.
func (l *leftovers) record(outcome release.Outcome) {
	var done, planned []string
	for _, pod := range outcome.Pods {
		if pod.Result != release.NotActed {
			done = append(done, strings.TrimSuffix(fmt.Sprintf("pod %s: %s: %s", pod.Group, pod.Result, pod.Why),
				": "))
			l.log.Info("release of a pod ended", "pod", pod.Group, "result", pod.Result, "err", pod.Why)
		}
		for _, step := range pod.Steps {
			if step.Result == release.NotActed {
				continue
			}
			done = append(done, DescribeStep(step))
			l.meter.Released(string(step.Kind), string(step.Result))
			l.log.Info("release", "kind", step.Kind, "subject", step.ID, "action", step.Description, "result",
				step.Result,
				"err", step.Error)
		}
		planned = append(planned, notActed(pod)...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.planned = planned; len(done) > 0 {
		l.done = done
	}
}

// notActed describes the steps of a pod that did not run, in one line for all steps of one kind and reason: a pod has a
// cgroup in each hierarchy.
func notActed(pod release.PodOutcome) []string {
	type line struct {
		kind    object.Kind
		blocked string
	}
	var lines []line
	counts := map[line]int{}
	for _, step := range pod.Steps {
		l := line{step.Kind, step.Blocked}
		if step.Result != release.NotActed {
			continue
		}
		if counts[l]++; counts[l] == 1 {
			lines = append(lines, l)
		}
	}
	var texts []string
	for _, l := range lines {
		texts = append(texts, fmt.Sprintf("%-11s %-14s %d of pod %s (not released: %s)", release.NotActed, l.kind,
			counts[l], podSubject(pod.Pod, pod.Group).Name, l.blocked))
	}
	return texts
}

// DescribeStep returns the outcome of one step as a line of text.
func DescribeStep(s release.StepOutcome) string {
	return fmt.Sprintf("%-11s %-14s %s: %s", s.Result, s.Kind, s.ID, s.Description) + NotDone(s)
}

// NotDone returns why a step did not release its object, as the end of a line; empty if it did.
func NotDone(s release.StepOutcome) (text string) {
	if s.Blocked != "" {
		text = " (not released: " + s.Blocked + ")"
	}
	if s.Error != "" && s.Result != release.Released && s.Result != release.Vanished {
		text += ": " + s.Error
	}
	return text
}

func (l *leftovers) status() status.ReleaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return status.ReleaseStatus{Mode: string(l.mode), Last: slices.Concat(l.done, l.planned),
		Quarantine: l.quarantine.last.Load()}
}

func (l *leftovers) copyHistory() object.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.history)
}

// newRunner returns the runner of releases. Before it touches a pod it inspects everything once more, with the same
// history and an inspector that has not asked the apiserver yet.
func newRunner(cfg config.Config, clients *Clients, log *slog.Logger,
	history func() object.History) (*release.Runner, error) {
	mutator, err := clients.openMutator(log)
	if err != nil {
		return nil, err
	}
	return release.New(release.Options{
		Host: clients.Host, Mutator: mutator, Settings: cfg.Remediate, Log: log, StateDir: cfg.StateDir,
		Paused: func(ctx context.Context) (string, error) {
			if clients.Client == nil {
				return "", errors.New("the agent has no client for the apiserver: no kubelet was found on this node, and nodeName " +
					"is not configured")
			}
			return paused(ctx, clients.Host.Cluster.Node)
		},
		Confirm: func(ctx context.Context, uid string) (object.Report, error) {
			report, _ := newInspector(cfg, clients, log).About(uid).Pass(ctx, history())
			return report, ctx.Err()
		},
		StillGone: newInspector(cfg, clients, log).StillGone,
	})
}
