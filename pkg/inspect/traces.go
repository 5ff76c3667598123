package inspect

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// restingPasses is how many passes in a row are skipped while no object is suspicious and no pod's traces change.
// Changes that only a whole pass can notice, such as a pod deleted without any trace by kubelet, wait that long.
const restingPasses = 4

// stillPasses is the same while a watch of the node's pods shows no change either: then a pod deleted without a trace
// on the node is noticed as well, and a whole pass, which asks kubelet, comes once in 40 minutes.
const stillPasses = 40

// rest decides which passes may be skipped.
type rest struct {
	before hostscan.Traces   // traces before the last pass
	known  bool              // before could be read
	began  finding.Timestamp // the last pass
	quiet  bool              // it found no object to check again
	waits  bool              // it reported an object or a gate: what is reported must not outlast its cause for long
	passes int               // skipped since then
	pods   map[string]string // kubelet's pods in it: UID and phase; nil if kubelet did not list them
}

// Rests reports whether the next pass may be skipped: the last one found only objects of living pods and foreign ones,
// and no trace of a pod has changed since it began. It must not run concurrently with Pass.
func (i *Inspector) Rests(ctx context.Context) bool {
	now, err := hostscan.ReadTraces(ctx, i.host)
	began := i.host.Clock()
	if r := &i.rest; r.quiet && err == nil && now == r.before {
		rests := r.passes < restingPasses || !r.waits && i.still(began)
		if !rests && !r.waits && r.passes == restingPasses && i.samePods(ctx) {
			r.began, rests = began, true // as if the pass had been made now
		}
		if rests {
			r.passes++
			return true
		}
	}
	i.rest = rest{before: now, known: err == nil, began: began}
	return false
}

// samePods reports whether kubelet has the pods of the last pass, each in the same phase, and the watch shows no change now.
// The watch may have begun with the pass, so that it does not show the changes just before; from now on it shows all.
func (i *Inspector) samePods(ctx context.Context) bool {
	if i.host.Cluster.Still == nil || !i.host.Cluster.Still(0) || i.rest.pods == nil {
		return false
	}
	now := phases(witness.AskKubelet(ctx, hostscan.New(ctx, i.host, hostscan.Deadline{})))
	return now != nil && maps.Equal(i.rest.pods, now)
}

// phases returns kubelet's pods by UID with their phases; nil if kubelet did not list them.
func phases(k witness.KubeletInventory) map[string]string {
	if !k.OK() || k.ByName() {
		return nil
	}
	pods := make(map[string]string, len(k.Pods))
	for uid, pod := range k.Pods {
		pods[uid] = pod.Phase
	}
	return pods
}

// still reports whether no pod of the node has changed since the last pass.
func (i *Inspector) still(now finding.Timestamp) bool {
	still := i.host.Cluster.Still
	return still != nil && i.rest.passes < stillPasses && still(now.Since(i.rest.began))
}

// after takes the result of a pass over objects of the given kinds.
func (r *rest) after(report object.Report, next object.History, only, optedIn []object.Kind) {
	r.quiet, r.passes = r.known && len(only) == 0 && quiet(report, next, optedIn), 0
	r.waits = len(report.Suspicious().Objects) > 0 || slices.ContainsFunc(report.Gates, func(g object.Gate) bool {
		return g.Stays() || !g.Open && report.At.Since(g.Since) >= time.Hour // a finding
	})
}

// quiet reports whether no part of a pass must be checked again: every object is a living pod's or foreign, or is
// report-only and either proven or waiting for a lasting condition; every source was read, and the history has no other
// entries. Opt-in objects count like report-only ones until proven: a release may follow. A closed gate holds no object
// then; see waits.
func quiet(report object.Report, next object.History, optedIn []object.Kind) bool {
	// The task of a container that containerd has and CRI lost stays a candidate as long as that container.
	const settledAfter = time.Hour
	settled := 0
	for _, o := range report.Suspicious().Objects {
		waits := o.Verdict == object.Candidate && report.At.Since(o.FirstSeen) > settledAfter
		lasts := waits || o.Verdict == object.Unowned
		reported := kinds.Of(o.Kind).ReportOnly != "" || kinds.Of(o.Kind).OptIn && !slices.Contains(optedIn, o.Kind)
		if !(reported && (lasts || o.Verdict == object.Leftover) || kinds.Of(o.Kind).OptIn && lasts) {
			return false
		}
		settled++
	}
	return len(next)-next.Memories() == settled && len(report.Errors) == 0
}
