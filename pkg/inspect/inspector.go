// Package inspect finds the leftovers of deleted pods on the node. A pass lists the objects that exist (kinds), asks which
// pods may own them (witness) and compares the two (verdict). It only reads. If a witness does not answer, the verdict is
// "unknown", never "leftover".
package inspect

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// recheck is how often the apiserver is asked again about pods that it has already denied. A denial stays valid, as
// UIDs are not reused; asking again covers the restore of an old state of the cluster.
const recheck = 10 * time.Minute

// Inspector makes passes over one host. It remembers the last list of the apiserver, so that a lasting leftover does
// not cause a request in every pass. It is not safe for concurrent use.
type Inspector struct {
	host     *host.Host
	settings object.Settings
	log      *slog.Logger
	cluster  witness.ClusterInventory
	limit    time.Duration // of one pass: see Within
	rest     rest
	specs    []kinds.Spec
	record   func(verdict.Evidence) // may be nil: see Recording
	pinned   string                 // see About
}

// New returns an inspector of h.
func New(h *host.Host, s object.Settings, log *slog.Logger) *Inspector {
	return &Inspector{host: h, settings: s, log: log, specs: kinds.Specs()}
}

// About makes the pod with this UID, name or namespace/name the first to be asked for by name if the gate against mass
// orphaning holds it, and again if the last answer is old: a person or a release is about it.
func (i *Inspector) About(pod string) *Inspector {
	i.pinned = pod
	return i
}

// Within limits the time of a pass, whatever hangs: a kernel interface, the runtime, kubelet, the apiserver. A source
// that has not answered by then is reported as a failure, and the report has the rest. It is for commands that end
// afterwards: a call that hangs in the kernel is abandoned. Zero, the default, means no limit except the context.
func (i *Inspector) Within(limit time.Duration) *Inspector {
	i.limit = limit
	return i
}

// Pass lists and evaluates all objects of the given kinds, or of all kinds. Only those unknown to the local witnesses
// are confirmed with the apiserver. It returns the history for the next pass. It must not run concurrently.
func (i *Inspector) Pass(ctx context.Context, history object.History, only ...object.Kind) (object.Report, object.History) {
	started := i.host.Clock()
	ends := hostscan.Deadline{Begun: time.Now(), Limit: i.limit}
	scan, err := hostscan.Within(ctx, ends, hostscan.Local, "the directories of kubelet and the runtime",
		func(context.Context) (*hostscan.Scan, error) {
			return hostscan.New(ctx, i.host, ends), nil
		})
	if err != nil { // paths that cannot be resolved are unknown
		report, _ := verdict.Evaluate(nil, witness.Inventory{}, history, i.settings, started)
		report.Errors = append(report.Errors, object.FailureOf("layout", err))
		i.recordPass(report, witness.Inventory{}, history)
		return report, history
	}
	scan.OptOut = func(labels, annotations map[string]string) string {
		return optout.Why(i.settings.OptOutPods, labels, annotations)
	}
	objects, blind, failures := list(ctx, scan, i.specs, only)
	addNames(objects, history)
	inventory := witness.Gather(ctx, scan)
	inventory.Unlisted = blind
	inventory.Others.Recall(history, started)
	if inventory.Kubelet.ByName() {
		inventory.Cluster = i.recent(started)
		inventory.ResolveNames()
	}
	kinds.MarkOtherTrees(ctx, scan, objects, inventory.Kubelet)
	kinds.ClaimStrays(objects, inventory.Kubelet)
	inventory.FollowHostPaths(ctx, scan, objects)
	add := func(what string, change func(context.Context, []object.Object) error) error {
		var err error
		if objects, err = onCopy(ctx, scan, what, objects, change); err != nil {
			failures = append(failures, object.FailureOf(what, err))
		}
		return err
	}
	_ = add("owners of network namespaces", func(ctx context.Context, objects []object.Object) error {
		return kinds.AttachOwners(ctx, scan, objects)
	})
	recalled := recall(objects, history, started)
	kinds.DisownStrays(objects)
	_ = add("processes in network namespaces without an owner", func(_ context.Context, objects []object.Object) error {
		kinds.ExplainUnowned(scan, objects)
		return nil
	})
	suspects := verdict.Nominate(objects, &inventory, history, started)
	if len(suspects) > 0 {
		local := inventory
		if err := add("processes in network namespaces", func(ctx context.Context, objects []object.Object) error {
			suspects := verdict.Nominate(objects, &local, history, started)
			kinds.Explain(scan, suspects)
			kinds.ExplainIDs(suspects)
			kinds.ExplainLeases(ctx, scan, suspects)
			return nil
		}); err != nil {
			kinds.DoubtNetwork(verdict.Nominate(objects, &inventory, history, started), err)
		}
		suspects = verdict.Nominate(objects, &inventory, history, started)
		running := verdict.RunningSuspects(suspects, &inventory, history, started)
		fresh := i.mustAsk(suspects, running, &inventory, history, started)
		inventory.Cluster = i.cluster
		inventory.Confirm(ctx, scan, i.settings, fresh)
		i.cluster = inventory.Cluster
		inventory.AskOneByName(ctx, scan, running, history, started)
		inventory.AskHeldByName(ctx, scan, inventory.HeldByName(suspects, history, started, i.pinned), started)
		kinds.NoteRemoved(ctx, scan, &inventory, objects, suspects, i.settings.MassOrphaning)
	}
	report, next := verdict.Evaluate(objects, inventory, history, i.settings, started)
	defer func() {
		i.rest.after(report, next, only, i.settings.OptedIn)
		i.rest.quiet = i.rest.quiet && ctx.Err() == nil // the caller drops a pass that ended late
		i.rest.pods = phases(inventory.Kubelet)
	}()
	keepNames(objects, next)
	report.Errors = append(report.Errors, failures...)
	report.Errors = append(report.Errors, inventory.Failures()...)
	keepUnseen(history, next, blind, objects, started)
	inventory.Others.Note(history, next, started)
	keepOwners(objects, recalled, next, started)
	i.applyOptOuts(&report, next, i.optOuts(scan, &inventory, history), len(blind)+len(report.Errors) == 0,
		inventory.Kubelet.Pods, started)
	i.addHolders(ctx, scan, &report)
	i.recordPass(report, inventory, history)
	i.log.Debug("inspected", "objects", len(objects), "suspects", len(suspects), "took", i.host.Clock().Since(started))
	return report, next
}

// list runs the listers of the given kinds. blind are the kinds of which objects may have been missed: those with a
// failed lister, and those not requested.
func list(ctx context.Context, scan *hostscan.Scan, specs []kinds.Spec, only []object.Kind) (objects []object.Object,
	blind map[object.Kind]bool, failures []object.Failure) {
	blind = make(map[object.Kind]bool)
	specs = slices.Clone(specs)
	slices.SortStableFunc(specs, func(a, b kinds.Spec) int { return cmp.Compare(a.Stage(), b.Stage()) })
	found, errs := make([][]object.Object, len(specs)), make([]error, len(specs))
	wanted := func(spec kinds.Spec) bool {
		return len(only) == 0 || slices.Contains(only, spec.Kind)
	}
	runtime := slices.IndexFunc(specs, func(s kinds.Spec) bool { return s.FromRuntime })
	for _, part := range [][2]int{{0, runtime}, {runtime, len(specs)}} {
		hostscan.Parallel(scan.Ends, part[1]-part[0], func(n int) {
			n += part[0]
			if spec := specs[n]; wanted(spec) {
				found[n], errs[n] = hostscan.Within(ctx, scan.Ends, spec.Stage(), "listing "+string(spec.Kind),
					func(ctx context.Context) ([]object.Object, error) { return spec.List(ctx, scan) })
			}
		})
	}
	for n, spec := range specs {
		objects = append(objects, found[n]...)
		if errs[n] != nil || !wanted(spec) {
			blind[spec.Kind] = true
		}
		if errs[n] != nil {
			failures = append(failures, object.FailureOf(string(spec.Kind), errs[n]))
		}
	}
	return objects, blind, failures
}

// onCopy lets change modify objects. It may hang; with a time limit it works on copies, since it may go on after the
// limit.
func onCopy(ctx context.Context, scan *hostscan.Scan, what string, objects []object.Object,
	change func(context.Context, []object.Object) error) ([]object.Object, error) {
	if scan.Ends.Limit <= 0 {
		return objects, change(ctx, objects)
	}
	copies := slices.Clone(objects)
	for i := range copies {
		copies[i].Facts, copies[i].Holders = maps.Clone(copies[i].Facts), slices.Clone(copies[i].Holders)
	}
	changed, err := hostscan.Within(ctx, scan.Ends, hostscan.Owners, what, func(ctx context.Context) ([]object.Object,
		error) {
		return copies, change(ctx, copies)
	})
	if changed == nil {
		return objects, err
	}
	return changed, err
}

// mustAsk reports whether a new list of the apiserver could tell more about suspects than the last one.
func (i *Inspector) mustAsk(suspects []*object.Object, running []string, local *witness.Inventory, history object.History,
	now finding.Timestamp) bool {
	last := i.cluster
	if !last.OK() || last.NodeErr != nil || !object.SameBoot(last.At, now) || now.Since(last.At) >= recheck {
		return true
	}
	if kubelet := &local.Kubelet; kubelet.AgeErr != nil || now.SinceBoot-kubelet.Age > last.At.SinceBoot {
		return true // the list was compared with another kubelet process
	}
	if c := local.Comparison(last.Pods); c.LacksMost() || len(last.Proven) > 0 {
		return true
	}
	if local.Kubelet.ByName() && now.Since(last.At) < i.settings.Grace/2 {
		return false // names make more suspects: not for each of them
	}
	for _, uid := range running {
		if denyAgain(history.PodSighting(uid, now).Denials, i.settings.RunningSpacing, now) {
			return true
		}
	}
	inventory := witness.Inventory{Cluster: last}
	for _, o := range suspects {
		sighting := history.Seen(o, now)
		if inventory.ApiserverAnswer(o, sighting.First) != object.Denies || local.KubeletAnswer(o,
			sighting.First) != object.Denies {
			return true
		}
		if _, spacing := verdict.Patience(o, local, i.settings); denyAgain(sighting.Denials, spacing, now) {
			return true
		}
	}
	return false
}

// denyAgain reports whether it is time for the second of two denials that must be this far apart. If there is none yet,
// the last list counts as the first.
func denyAgain(denials []finding.Timestamp, apart time.Duration, now finding.Timestamp) bool {
	n := len(denials)
	return n > 0 && denials[n-1].Since(denials[0]) < apart && now.Since(denials[0]) >= apart
}

// keepUnseen carries over the history of objects that this pass may have missed.
func keepUnseen(old, next object.History, blind map[object.Kind]bool, objects []object.Object, now finding.Timestamp) {
	listed := make(map[string]bool, len(objects))
	for i := range objects {
		listed[object.Key(&objects[i])] = true
	}
	for k, s := range old {
		_, evaluated := next[k]
		ofPod := strings.HasPrefix(k, object.PodKey("")) && (blind[object.Sandbox] || blind[object.Container]) && !evaluated
		if (ofPod || blind[object.KindOf(k)] && !listed[k]) && object.SameBoot(s.First, now) {
			next[k] = s
		}
	}
}

// recent returns the last list of the apiserver, if it may still count for ended pods.
func (i *Inspector) recent(now finding.Timestamp) witness.ClusterInventory {
	if last := i.cluster; last.OK() && object.SameBoot(last.At, now) && now.Since(last.At) < recheck {
		return last
	}
	return witness.ClusterInventory{}
}
