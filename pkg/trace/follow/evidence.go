package follow

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

// outside is how far a time of the node may lie outside of the act: clocks are measured from whole seconds.
const outside = 5 * time.Second

// Evidence takes what a node's agent reported about a pod. It reports false, and counts that, if the evidence cannot be true: the pod is
// unknown or on another node, or a time lies outside of the act.
func (f *Follower) Evidence(e event.Evidence, node string, now time.Time) (taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.acts[e.UID] {
		t := &a.Timeline
		if t.Node != node || t.Namespace != e.Namespace || t.Name != e.Name || !concerns(t, e.Act) {
			continue
		}
		f.applySkews(t)
		if witnessed(t, e, now) {
			a.changed, taken = true, true
		}
	}
	if taken {
		f.counts.Evidence++
	} else {
		f.counts.EvidenceIgnored++
	}
	return taken
}

const (
	maxSays     = 512 // bytes
	maxFindings = 16
)

func concerns(t *record.Timeline, act string) bool {
	return act == string(record.Creation) && (t.Act == record.Creation || t.Replaces != "") || act == string(record.Deletion) && t.Act == record.Deletion
}

// witnessed converts an evidence to marks of a timeline: of the node's clock, with an estimated arrival. It reports false,
// and sets none, if a time lies outside of the act.
func witnessed(t *record.Timeline, e event.Evidence, now time.Time) bool {
	from, plausible := t.Begin().Arrival.Add(-outside), true
	mark := func(at time.Time) record.Mark {
		if at.IsZero() {
			return record.Mark{}
		}
		ours := at.Add(t.Skews[record.Node])
		plausible = plausible && !ours.Before(from) && !ours.After(now.Add(outside))
		if ours.After(now) {
			ours = now
		}
		return record.Mark{Time: at, Source: record.Node, Arrival: ours, Late: true}
	}
	marks, images := map[record.Point]record.Mark{}, map[string]record.Mark{} // images by container: a created one has its image
	switch record.Act(e.Act) {
	case record.Creation:
		marks[record.Mounted], marks[record.SandboxReady] = mark(e.SandboxRequested), mark(e.SandboxCreated)
		if !e.SandboxReady.IsZero() {
			marks[record.SandboxReady] = mark(e.SandboxReady)
		}
		for _, c := range e.Containers {
			images[c.Name] = mark(c.Created)
		}
	case record.Deletion:
		marks[record.SandboxStopped], marks[record.Unmounted] = mark(e.SandboxStopped), mark(e.Unmounted)
	}
	if !plausible {
		return false
	}
	for p, m := range marks {
		t.Set(p, m)
	}
	for name, m := range images {
		if c := t.Container(name); c != nil {
			c.Imaged.Set(m)
		}
	}
	t.Says = record.NodeSays{Mark: record.Mark{Source: record.Own, Arrival: now}, Text: finding.Clip(strings.Clone(e.Text), maxSays)}
	if e.Ended.IsZero() {
		t.Says.Stage = finding.Clip(strings.Clone(e.Stage), maxSays)
	}
	for _, found := range e.Findings[:min(len(e.Findings), maxFindings)] {
		t.Says.Findings = append(t.Says.Findings, finding.Clip(strings.Clone(found), maxSays))
	}
	return true
}
