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
func (f *Follower) Evidence(e event.Evidence, node string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := false
	for _, a := range f.acts[e.UID] {
		t := &a.Timeline
		if t.Node != node || t.Namespace != e.Namespace || t.Name != e.Name || !concerns(t, e.Act) {
			continue
		}
		f.applySkews(t)
		w := witness{t: t, now: now, from: t.Begin().Arrival.Add(-outside)}
		if w.marks(e); w.false {
			continue
		}
		for p, m := range w.set {
			t.Set(p, m)
		}
		w.containers(e)
		t.Says = record.NodeSays{Mark: record.Mark{Source: record.Own, Arrival: now}, Text: finding.Clip(strings.Clone(e.Text), maxSays)}
		if e.Ended.IsZero() {
			t.Says.Stage = finding.Clip(strings.Clone(e.Stage), maxSays)
		}
		for _, found := range e.Findings[:min(len(e.Findings), maxFindings)] {
			t.Says.Findings = append(t.Says.Findings, finding.Clip(strings.Clone(found), maxSays))
		}
		a.changed, taken = true, true
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
	switch act {
	case string(record.Creation):
		return t.Act == record.Creation || t.Act == record.Upgrade && t.Replaces != ""
	case string(record.Deletion):
		return t.Act == record.Deletion
	}
	return false
}

// witness converts the times of an evidence to marks of a timeline.
type witness struct {
	t         *record.Timeline
	now, from time.Time
	set       map[record.Point]record.Mark
	false     bool // a time lies outside of the act
}

// mark is a mark of the node's clock, whose arrival is an estimate. It is unknown for a zero time.
func (w *witness) mark(at time.Time) record.Mark {
	if at.IsZero() {
		return record.Mark{}
	}
	ours := at.Add(w.t.Skews[record.Node])
	if ours.Before(w.from) || ours.After(w.now.Add(outside)) {
		w.false = true
	}
	if ours.After(w.now) {
		ours = w.now
	}
	return record.Mark{Time: at, Source: record.Node, Arrival: ours, Late: true}
}

func (w *witness) marks(e event.Evidence) {
	w.set = map[record.Point]record.Mark{}
	if e.Act == string(record.Deletion) {
		w.set[record.SandboxStopped], w.set[record.Unmounted] = w.mark(e.SandboxStopped), w.mark(e.Unmounted)
		return
	}
	ready := e.SandboxReady
	if ready.IsZero() {
		ready = e.SandboxCreated
	}
	w.set[record.Mounted], w.set[record.SandboxReady] = w.mark(e.SandboxRequested), w.mark(ready)
	for _, c := range e.Containers {
		w.mark(c.Created)
	}
}

// containers sets when the node had the image of a container, unless the watch has shown it: a created container has one.
func (w *witness) containers(e event.Evidence) {
	if e.Act != string(record.Creation) {
		return
	}
	for _, seen := range e.Containers {
		if c := w.t.Container(seen.Name); c != nil {
			c.Imaged.Set(w.mark(seen.Created))
		}
	}
}
