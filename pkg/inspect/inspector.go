package inspect

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DefaultSettings are the thresholds unless the configuration says otherwise.
func DefaultSettings() Settings {
	return Settings{
		Every:         time.Minute,
		Passes:        3,
		Grace:         10 * time.Minute,
		ListSpacing:   30 * time.Second,
		KubeletUptime: 10 * time.Minute,
		RuntimeUptime: 5 * time.Minute,
		MassOrphaning: 3,
		MassPercent:   20,
	}
}

// recheck is how often the apiserver is asked again for what it has denied already. A denial holds for ever, as UIDs do
// not return; asking again is for the case that somebody restores an old state of the cluster.
const recheck = 10 * time.Minute

// Inspector makes passes over one host. It remembers the last list of the apiserver, so that a leftover which stays does
// not cost a request in every pass. It is not safe for concurrent use.
type Inspector struct {
	host     *host.Host
	settings Settings
	log      *slog.Logger
	cluster  ClusterTruth
}

// New returns an inspector of h.
func New(h *host.Host, s Settings, log *slog.Logger) *Inspector {
	return &Inspector{host: h, settings: s, log: log}
}

// Pass looks at all objects of the given kinds, or of all kinds, and judges them: list, nominate by the local witnesses,
// and confirm by the apiserver only what they do not know. It returns the history for the next pass. It must not run
// twice at a time.
func (i *Inspector) Pass(ctx context.Context, history History, kinds ...Kind) (Report, History) {
	started := i.host.Clock()
	scan := NewScan(ctx, i.host)
	objects, blind, failures := list(ctx, scan, kinds)
	truth := Gather(ctx, scan)
	if err := tie(ctx, scan, objects); err != nil {
		failures = append(failures, Failure{"owners of network namespaces", err.Error()})
	}
	suspects := nominate(objects, &truth)
	if len(suspects) > 0 {
		explain(scan, suspects)
		fresh := i.mustAsk(suspects, history, started)
		truth.Cluster = i.cluster
		truth.Confirm(ctx, scan, fresh)
		i.cluster = truth.Cluster
	}
	report, next := Judge(objects, truth, history, i.settings, started)
	report.Errors = append(report.Errors, failures...)
	report.Errors = append(report.Errors, truth.failures()...)
	keepUnseen(history, next, blind, objects, started)
	i.addHolders(ctx, scan, &report)
	i.log.Debug("inspected", "objects", len(objects), "suspects", len(suspects), "took", i.host.Clock().Since(started))
	return report, next
}

// list runs the listers of the given kinds. blind are the kinds of which something may have been missed: those whose
// lister failed, and those that were not asked for.
func list(ctx context.Context, scan *Scan, kinds []Kind) (objects []Object, blind map[Kind]bool, failures []Failure) {
	blind = make(map[Kind]bool)
	for _, lister := range Listers() {
		if len(kinds) > 0 && !slices.Contains(kinds, lister.Kind) {
			blind[lister.Kind] = true
			continue
		}
		found, err := lister.List(ctx, scan)
		objects = append(objects, found...)
		if err != nil {
			blind[lister.Kind] = true
			failures = append(failures, Failure{string(lister.Kind), err.Error()})
		}
	}
	return objects, blind, failures
}

// nominate returns the objects that no witness on this node knows.
func nominate(objects []Object, truth *Truth) []*Object {
	var suspects []*Object
	for i := range objects {
		if suspicious(&objects[i], truth) {
			suspects = append(suspects, &objects[i])
		}
	}
	return suspects
}

// explain adds to suspects what is too dear to be read of everything.
func explain(scan *Scan, suspects []*Object) {
	var network []*Object
	for _, o := range suspects {
		switch {
		case o.Kind == Process:
			explainProcess(scan.Host, o)
		case o.Kind == Cgroup:
			explainCgroup(scan.Host, o)
		case networked(o.Kind):
			network = append(network, o)
		}
	}
	if len(network) == 0 {
		return
	}
	if err := explainNetwork(scan, network); err != nil {
		for _, o := range network {
			o.Doubt = "who lives in its network namespace: " + err.Error()
		}
	}
}

// mustAsk reports whether a new list of the apiserver would tell something about suspects that the last one does not.
func (i *Inspector) mustAsk(suspects []*Object, history History, now finding.Stamp) bool {
	last := i.cluster
	if !last.OK() || last.NodeErr != nil || !sameBoot(last.At, now) || now.Since(last.At) >= recheck {
		return true
	}
	truth := Truth{Cluster: last}
	for _, o := range suspects {
		sighting := history.sighting(o, now)
		if truth.askedApiserver(o, sighting.First) != Denies {
			return true
		}
		n := len(sighting.Denials)
		if n == 0 {
			continue // the last list counts as the first denial
		}
		first := sighting.Denials[0]
		if sighting.Denials[n-1].Since(first) < i.settings.ListSpacing && now.Since(first) >= i.settings.ListSpacing {
			return true
		}
	}
	return false
}

// keepUnseen carries over what is remembered of objects that this pass may have missed.
func keepUnseen(old, next History, blind map[Kind]bool, objects []Object, now finding.Stamp) {
	listed := make(map[string]bool, len(objects))
	for i := range objects {
		listed[key(&objects[i])] = true
	}
	for k, s := range old {
		if blind[kindOf(k)] && !listed[k] && sameBoot(s.First, now) {
			next[k] = s
		}
	}
}

// kindOf returns the kind in a key of the history.
func kindOf(key string) Kind {
	for _, kind := range Kinds() {
		if len(key) > len(kind) && key[:len(kind)] == string(kind) && key[len(kind)] == '/' {
			return kind
		}
	}
	return ""
}

// failures lists the witnesses that could not be heard.
func (t *Truth) failures() []Failure {
	var failures []Failure
	for _, witness := range []struct {
		name string
		err  error
	}{{Runtime, t.Runtime.Err}, {Containerd, t.Containerd.Err}, {Kubelet, t.Kubelet.Err}, {Apiserver, t.Cluster.Err}, {Apiserver, t.Cluster.NodeErr}} {
		if witness.err != nil {
			failures = append(failures, Failure{witness.name, witness.err.Error()})
		}
	}
	return failures
}

// addHolders finds out who keeps leftovers and candidates busy.
func (i *Inspector) addHolders(ctx context.Context, scan *Scan, report *Report) {
	var things []host.Holdable
	var of []int
	for n := range report.Objects {
		o := &report.Objects[n]
		if o.Verdict != Leftover && o.Verdict != Candidate {
			continue
		}
		switch o.Kind {
		case Cgroup:
			o.Holders = cgroupHolders(scan, o)
		case Mount, PodDirectory:
			things, of = append(things, holdable(scan, o)), append(of, n)
		}
	}
	if len(things) == 0 {
		return
	}
	holdings, incomplete, err := scan.Host.Holders(ctx, things)
	if err = errors.Join(err, incompleteError(incomplete)); err != nil {
		report.Errors = append(report.Errors, Failure{"holders", err.Error()})
	}
	for n, held := range holdings {
		for _, h := range held {
			report.Objects[of[n]].Holders = append(report.Objects[of[n]].Holders,
				Holder{PID: h.PID, Command: h.Comm, How: h.How, Pod: Pod{UID: h.UID}})
		}
	}
}

func incompleteError(why string) error {
	if why == "" {
		return nil
	}
	return errors.New("search cut short " + why)
}
