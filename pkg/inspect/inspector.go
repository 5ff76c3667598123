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
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
)

// DefaultSettings are the thresholds unless configured otherwise.
func DefaultSettings() Settings {
	return Settings{
		Every:       time.Minute,
		Passes:      3,
		Grace:       10 * time.Minute,
		ListSpacing: 30 * time.Second,

		RunningSpacing: 10 * time.Minute,

		KubeletUptime: 10 * time.Minute,
		RuntimeUptime: 5 * time.Minute,
		MassOrphaning: 3,
		MassPercent:   20,
	}
}

// recheck is how often the apiserver is asked again about pods that it has already denied. A denial stays valid, as
// UIDs are not reused; asking again covers the restore of an old state of the cluster.
const recheck = 10 * time.Minute

// Inspector makes passes over one host. It remembers the last list of the apiserver, so that a lasting leftover does
// not cause a request in every pass. It is not safe for concurrent use.
type Inspector struct {
	host     *host.Host
	settings Settings
	log      *slog.Logger
	cluster  ClusterInventory
	limit    time.Duration // of one pass: see Within
	rest     rest
	listers  map[Kind]Lister // of the kinds listed by other packages: see Listing
	record   func(Evidence)  // may be nil: see Recording
	pinned   string          // see About
}

// New returns an inspector of h.
func New(h *host.Host, s Settings, log *slog.Logger) *Inspector {
	return &Inspector{host: h, settings: s, log: log}
}

// Listing adds listers of further kinds: those of pkg/inspect/listers. A kind without a lister is unknown.
func (i *Inspector) Listing(listers map[Kind]Lister) *Inspector {
	i.listers = listers
	return i
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
func (i *Inspector) Pass(ctx context.Context, history History, kinds ...Kind) (Report, History) {
	started := i.host.Clock()
	ends := hostscan.Deadline{Begun: time.Now(), Limit: i.limit}
	scan, err := hostscan.Within(ctx, ends, hostscan.Local, "the directories of kubelet and the runtime",
		func(context.Context) (*hostscan.Scan, error) {
			return hostscan.New(ctx, i.host, ends), nil
		})
	if err != nil { // paths that cannot be resolved are unknown
		report, _ := Evaluate(nil, Inventory{}, history, i.settings, started)
		report.Errors = append(report.Errors, failureOf("layout", err))
		i.recordPass(report, Inventory{}, history)
		return report, history
	}
	scan.OptOut = func(labels, annotations map[string]string) string {
		return optout.Why(i.settings.OptOutPods, labels, annotations)
	}
	objects, blind, failures := list(ctx, scan, i.specs(), kinds)
	addNames(objects, history)
	inventory := Gather(ctx, scan)
	inventory.Unlisted = blind
	inventory.Others.recall(history, started)
	if inventory.Kubelet.byName() {
		inventory.Cluster = i.recent(started)
		inventory.resolveNames()
	}
	markOtherTrees(ctx, scan, objects, inventory.Kubelet)
	claimStrays(objects, inventory.Kubelet)
	inventory.followHostPaths(ctx, scan, objects)
	add := func(what string, change func(context.Context, []Object) error) error {
		var err error
		if objects, err = onCopy(ctx, scan, what, objects, change); err != nil {
			failures = append(failures, failureOf(what, err))
		}
		return err
	}
	_ = add("owners of network namespaces", func(ctx context.Context, objects []Object) error {
		return attachOwners(ctx, scan, objects)
	})
	recalled := recall(objects, history, started)
	disownStrays(objects)
	_ = add("processes in network namespaces without an owner", func(_ context.Context, objects []Object) error {
		explainUnowned(scan, objects)
		return nil
	})
	suspects := nominate(objects, &inventory, history, started)
	if len(suspects) > 0 {
		local := inventory
		if err := add("processes in network namespaces", func(ctx context.Context, objects []Object) error {
			suspects := nominate(objects, &local, history, started)
			explain(scan, suspects)
			explainIDs(suspects)
			explainLeases(ctx, scan, suspects)
			return nil
		}); err != nil {
			doubtNetwork(nominate(objects, &inventory, history, started), err)
		}
		suspects = nominate(objects, &inventory, history, started)
		running := runningSuspects(suspects, &inventory, history, started)
		fresh := i.mustAsk(suspects, running, &inventory, history, started)
		inventory.Cluster = i.cluster
		inventory.Confirm(ctx, scan, i.settings, fresh)
		i.cluster = inventory.Cluster
		inventory.askOneByName(ctx, scan, running, history, started)
		inventory.askHeldByName(ctx, scan, inventory.heldByName(suspects, history, started, i.pinned), started)
		noteRemoved(ctx, scan, &inventory, objects, suspects, i.settings.MassOrphaning)
	}
	report, next := Evaluate(objects, inventory, history, i.settings, started)
	defer func() { i.rest.after(report, next, kinds, i.settings.OptedIn) }()
	keepNames(objects, next)
	report.Errors = append(report.Errors, failures...)
	report.Errors = append(report.Errors, inventory.failures()...)
	keepUnseen(history, next, blind, objects, started)
	inventory.Others.note(history, next, started)
	keepOwners(objects, recalled, next, started)
	i.applyOptOuts(&report, next, i.optOuts(scan, &inventory, history), len(blind)+len(report.Errors) == 0,
		inventory.Kubelet.Pods, started)
	i.addHolders(ctx, scan, &report)
	i.recordPass(report, inventory, history)
	i.log.Debug("inspected", "objects", len(objects), "suspects", len(suspects), "took", i.host.Clock().Since(started))
	return report, next
}

// specs are all kinds with their listers.
func (i *Inspector) specs() []KindSpec {
	specs := Specs()
	for n := range specs {
		if lister := i.listers[specs[n].Kind]; lister != nil {
			specs[n].List = lister
		}
	}
	return specs
}

// list runs the listers of the given kinds. blind are the kinds of which objects may have been missed: those with a
// failed lister, and those not requested.
func list(ctx context.Context, scan *hostscan.Scan, specs []KindSpec, kinds []Kind) (objects []Object,
	blind map[Kind]bool, failures []Failure) {
	blind = make(map[Kind]bool)
	slices.SortStableFunc(specs, func(a, b KindSpec) int { return cmp.Compare(a.stage(), b.stage()) })
	found, errs := make([][]Object, len(specs)), make([]error, len(specs))
	wanted := func(spec KindSpec) bool {
		return spec.List != nil && (len(kinds) == 0 || slices.Contains(kinds, spec.Kind))
	}
	runtime := slices.IndexFunc(specs, func(s KindSpec) bool { return s.FromRuntime })
	for _, part := range [][2]int{{0, runtime}, {runtime, len(specs)}} {
		hostscan.Parallel(scan.Ends, part[1]-part[0], func(n int) {
			n += part[0]
			if spec := specs[n]; wanted(spec) {
				found[n], errs[n] = hostscan.Within(ctx, scan.Ends, spec.stage(), "listing "+string(spec.Kind),
					func(ctx context.Context) ([]Object, error) { return spec.List(ctx, scan) })
			}
		})
	}
	for n, spec := range specs {
		objects = append(objects, found[n]...)
		if errs[n] != nil || !wanted(spec) {
			blind[spec.Kind] = true
		}
		if errs[n] != nil {
			failures = append(failures, failureOf(string(spec.Kind), errs[n]))
		}
	}
	return objects, blind, failures
}

// onCopy lets change modify objects. It may hang; with a time limit it works on copies, since it may go on after the
// limit.
func onCopy(ctx context.Context, scan *hostscan.Scan, what string, objects []Object,
	change func(context.Context, []Object) error) ([]Object, error) {
	if scan.Ends.Limit <= 0 {
		return objects, change(ctx, objects)
	}
	copies := slices.Clone(objects)
	for i := range copies {
		copies[i].Facts, copies[i].Holders = maps.Clone(copies[i].Facts), slices.Clone(copies[i].Holders)
	}
	changed, err := hostscan.Within(ctx, scan.Ends, hostscan.Owners, what, func(ctx context.Context) ([]Object,
		error) {
		return copies, change(ctx, copies)
	})
	if changed == nil {
		return objects, err
	}
	return changed, err
}

// doubtNetwork marks network objects whose processes could not be determined.
func doubtNetwork(suspects []*Object, err error) {
	for _, o := range suspects {
		if o.Kind.networked() || o.Kind.namedByID() {
			o.Doubt = "processes in its network namespace: " + err.Error()
		}
	}
}

// nominate returns the objects that no local witness knows.
func nominate(objects []Object, inventory *Inventory, history History, now finding.Timestamp) []*Object {
	var suspects []*Object
	for i := range objects {
		if suspicious(&objects[i], inventory, history.seen(&objects[i], now).First) {
			suspects = append(suspects, &objects[i])
		}
	}
	return suspects
}

// explain adds facts to suspects that are too expensive to read for all objects.
func explain(scan *hostscan.Scan, suspects []*Object) {
	var network, mounts, directories, logs []*Object
	serves := make(map[string]string) // by pod: what its processes serve
	for _, o := range suspects {
		switch {
		case o.Kind == Mount:
			mounts = append(mounts, o)
		case o.Kind == PodDirectory:
			directories = append(directories, o)
		case o.Kind == Process:
			explainProcess(scan.Host, o)
		case o.Kind == PodLogs:
			logs = append(logs, o)
		case o.Kind == Cgroup:
			explainCgroup(scan.Host, o)
		case o.Kind.networked():
			network = append(network, o)
		}
	}
	if len(mounts) > 0 {
		explainMounts(scan, mounts)
	}
	if len(directories) > 0 {
		explainPodDirectories(scan, directories)
	}
	explainLogs(scan, logs)
	explainNetwork(scan, network)
	for _, o := range suspects {
		if _, known := serves[o.Pod.UID]; !known {
			serves[o.Pod.UID] = scan.Served(o.Pod.UID)
		}
		o.InUse = cmp.Or(serves[o.Pod.UID], o.InUse)
	}
}

// explainNetwork finds the processes in the network namespaces of objects.
func explainNetwork(scan *hostscan.Scan, network []*Object) {
	if len(network) == 0 {
		return
	}
	if err := findNetnsUsers(scan, network); err != nil {
		doubtNetwork(network, err)
	}
}

// mustAsk reports whether a new list of the apiserver could tell more about suspects than the last one.
func (i *Inspector) mustAsk(suspects []*Object, running []string, local *Inventory, history History,
	now finding.Timestamp) bool {
	last := i.cluster
	if !last.OK() || last.NodeErr != nil || !sameBoot(last.At, now) || now.Since(last.At) >= recheck {
		return true
	}
	if kubelet := &local.Kubelet; kubelet.AgeErr != nil || now.SinceBoot-kubelet.Age > last.At.SinceBoot {
		return true // the list was compared with another kubelet process
	}
	if c := local.comparison(last.Pods); c.lacksMost() || len(last.Proven) > 0 {
		return true
	}
	if local.Kubelet.byName() && now.Since(last.At) < i.settings.Grace/2 {
		return false // names make more suspects: not for each of them
	}
	for _, uid := range running {
		if denyAgain(history.podSighting(uid, now).Denials, i.settings.RunningSpacing, now) {
			return true
		}
	}
	inventory := Inventory{Cluster: last}
	for _, o := range suspects {
		sighting := history.seen(o, now)
		if inventory.apiserverAnswer(o, sighting.First) != Denies || local.kubeletAnswer(o, sighting.First) != Denies {
			return true
		}
		if _, spacing := patience(o, local, i.settings); denyAgain(sighting.Denials, spacing, now) {
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
func keepUnseen(old, next History, blind map[Kind]bool, objects []Object, now finding.Timestamp) {
	listed := make(map[string]bool, len(objects))
	for i := range objects {
		listed[key(&objects[i])] = true
	}
	for k, s := range old {
		_, evaluated := next[k]
		ofPod := strings.HasPrefix(k, podKey("")) && (blind[Sandbox] || blind[Container]) && !evaluated
		if (ofPod || blind[kindOf(k)] && !listed[k]) && sameBoot(s.First, now) {
			next[k] = s
		}
	}
}

// kindOf returns the kind in a key of the history; for a key of another type, a kind that does not exist.
func kindOf(key string) Kind {
	kind, _, _ := strings.Cut(key, "/")
	return Kind(kind)
}

// failures lists the witnesses that did not answer.
func (t *Inventory) failures() []Failure {
	var failures []Failure
	for _, witness := range []struct {
		name string
		err  error
	}{{Runtime, t.Runtime.Err}, {Containerd, t.Containerd.Err}, {Kubelet, t.Kubelet.Err}, {Apiserver, t.Cluster.Err},
		{Apiserver, t.Cluster.NodeErr}} {
		if witness.err != nil {
			failures = append(failures, failureOf(witness.name, witness.err))
		}
	}
	return failures
}
