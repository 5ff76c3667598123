package system

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// pids-limits reads, of pods with their containers, and of slices and services, in cgroup v1 and v2,
//
//	pids.max       4096              or max: processes and threads that are allowed here and below
//	pids.current   112
//	pids.events    max 3             the number of failed forks: counted in the cgroup of the program that forked
//	pids.events.local                the same since Linux 6.11, in v2: counted where the limit is (pids.events: also above)
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#pid. Kubelet limits pods by podPidsLimit, systemd services by
// TasksMax. The kernel logs only the first failure of each cgroup.

const (
	pidsLimitsAt   = 95 // percent
	pidsLimitsKeep = 90
	pidsLimitsFor  = 10 * time.Minute
	maxPIDsCgroups = 20_000
)

// PIDsLimits finds pods and services that cannot start more processes or threads.
func PIDsLimits() detect.Check {
	c := &pidsCheck{}
	return detect.Check{
		ID: "pids-limits", Domain: "cpu",
		Summary: "a pod or service has reached its limit of processes and threads, or is close to it",
		Advice: "Check for a leak: `kubectl exec POD -- ps -eLf`, or `systemd-cgls`. If it needs more, raise " +
			"podPidsLimit in kubelet's configuration, or TasksMax in the unit of a service.",
		Doc: detect.Doc{
			Reads: []string{"pids.max, pids.current and pids.events of pods, containers, slices and services in " +
				"/sys/fs/cgroup"},
			Why: "Programs that cannot start a thread crash or hang; exec probes and kubectl exec fail.",
			Faults: []detect.Fault{
				{Reason: "PIDsLimitReached", Severity: finding.Warning,
					When: "a process or thread could not be started within the last 10 minutes"},
				{Reason: "PIDsNearLimit", Severity: finding.Warning,
					When: "95 % of the limit are in use; cleared below 90 %"},
			},
			FalseAlarms: "Programs that keep a full pool of threads by design.",
		},
		CounterBased: true,
		UsesPartly:   []host.Setting{host.CgroupRoot},
		Every:        5 * time.Minute,
		Wakes:        []detect.Wake{checkkit.KernelWake()},
		Run:          c.run,
	}
}

// pidsCheck keeps the counts of the previous run.
type pidsCheck struct {
	failed map[string]uint64 // by cgroup; zeros are left out; nil before the first run
	recent map[finding.Subject]checkkit.RecentCount
}

// pidsGroup is the state of a pod or service.
type pidsGroup struct {
	failed         uint64 // since the last run
	current, limit uint64 // of its fullest cgroup
}

func (c *pidsCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	hierarchy, err := checkkit.ControllerHierarchy(h, "pids")
	if err != nil {
		return nil, err
	}
	s := pidsScan{files: h.Files, root: hierarchy.Point, before: c.failed, failed: make(map[string]uint64),
		groups: make(map[finding.Subject]pidsGroup), doubts: make(map[finding.Subject]error)}
	if err := s.all(ctx, h, hierarchy); err != nil {
		return nil, err
	}
	c.failed = s.failed
	now := h.Clock().SinceBoot
	return c.evaluate(ctx, h, s, now), finding.Partial(s.doubts)
}

func (c *pidsCheck) evaluate(ctx context.Context, h *host.Host, s pidsScan, now time.Duration) []finding.Finding {
	next := make(map[finding.Subject]checkkit.RecentCount)
	var findings []finding.Finding
	for subject, g := range s.groups {
		t := c.recent[subject]
		if g.failed > 0 {
			t.Add(g.failed, now)
		}
		reached := t.Recent(now, pidsLimitsFor)
		share := checkkit.PercentOf(g.current, g.limit)
		if reached {
			next[subject] = t
		} else if share < pidsLimitsKeep {
			continue
		}
		f := finding.Finding{
			Subject: subject, Severity: finding.Warning, Reason: "PIDsNearLimit",
			BelowRaise: !reached && share < pidsLimitsAt,
			Message:    fmt.Sprintf("%d of %d processes and threads are in use", g.current, g.limit),
			Facts:      map[string]string{"current": fmt.Sprint(g.current), "limit": fmt.Sprint(g.limit)},
		}
		if reached {
			f.Reason, f.Facts["failed"] = "PIDsLimitReached", fmt.Sprint(t.Count)
			f.Message = fmt.Sprintf("%d processes or threads could not be started within 10 minutes", t.Count)
			if g.limit > 0 {
				f.Message += fmt.Sprintf("; %d of %d are in use", g.current, g.limit)
			}
		}
		findings = append(findings, f)
	}
	c.recent = next
	namePods(ctx, h, findings)
	slices.SortFunc(findings, finding.Compare)
	return findings
}

// namePods puts the names of pods and cgroups before the messages.
func namePods(ctx context.Context, h *host.Host, findings []finding.Finding) {
	names := sync.OnceValue(func() map[string]string { return checkkit.KubeletNames(ctx, h) })
	for i := range findings {
		f := &findings[i]
		name := checkkit.Sanitize(f.Subject.Name, checkkit.MaxLine)
		if f.Subject.Kind == rules.PodKind {
			name = cmp.Or(names()[f.Subject.UID], name)
			f.Facts["pods"] = name
		}
		f.Message = name + ": " + f.Message
	}
}

// pidsScan is one scan of all cgroups.
type pidsScan struct {
	files  host.Files
	root   string
	before map[string]uint64
	failed map[string]uint64
	groups map[finding.Subject]pidsGroup
	doubts map[finding.Subject]error
}

func (s *pidsScan) all(ctx context.Context, h *host.Host, hierarchy cgroup.CgroupHierarchy) error {
	err := checkkit.WalkSlices(h.Files, hierarchy.Point, "/", checkkit.FoldersAbove(cgroup.PodCgroupDirs(h.Paths)),
		func(name string, _ bool) error {
			s.add(finding.Subject{Kind: "cgroup", Name: name}, name)
			return checkkit.DeadlineError(ctx, hierarchy)
		})
	if err != nil {
		return err
	}
	pods, err := cgroup.PodCgroups(h, hierarchy)
	if err != nil {
		return err
	}
	if len(pods) > maxPIDsCgroups {
		return fmt.Errorf("list %s: more than %d cgroups of pods", hierarchy.Point, maxPIDsCgroups)
	}
	for _, p := range pods {
		if p.Depth <= 1 {
			s.add(finding.Subject{Kind: rules.PodKind, Name: p.UID, UID: p.UID}, p.Path)
		}
		if err := checkkit.DeadlineError(ctx, hierarchy); err != nil {
			return err
		}
	}
	return nil
}

// add reads one cgroup. One removed meanwhile is ignored.
func (s *pidsScan) add(subject finding.Subject, name string) {
	dir := path.Join(s.root, name)
	events, err := checkkit.ReadCounts(s.files, path.Join(dir, "pids.events.local"))
	if checkkit.IsGone(err) {
		events, err = checkkit.ReadCounts(s.files, path.Join(dir, "pids.events"))
	}
	if checkkit.IsGone(err) {
		return
	}
	g := s.groups[subject]
	if err == nil {
		failed := events["max"]
		if failed > 0 {
			s.failed[name] = failed
		}
		if before := s.before[name]; s.before != nil && failed != before {
			if failed < before {
				before = 0 // the cgroup was created again
			}
			g.failed = max(g.failed, failed-before)
		}
		err = s.addUse(&g, dir)
	}
	if err != nil && !checkkit.IsGone(err) {
		s.doubts[subject] = err
	}
	s.groups[subject] = g
}

func (s *pidsScan) addUse(g *pidsGroup, dir string) error {
	limit, limited, err := checkkit.ReadLimit(s.files, path.Join(dir, "pids.max"))
	if err != nil || !limited {
		return err
	}
	current, err := checkkit.ReadCount(s.files, path.Join(dir, "pids.current"))
	if err == nil && checkkit.PercentOf(current, limit) >= checkkit.PercentOf(g.current, g.limit) {
		g.current, g.limit = current, limit
	}
	return err
}
