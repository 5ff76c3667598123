package follow

import (
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

// Change is how a pod arrived.
type Change int

// The changes.
const (
	Listed Change = iota
	Watched
	Gone
)

// Pod takes a pod from the watch. It keeps only data that the record has fields for.
func (f *Follower) Pod(p *corev1.Pod, change Change, now time.Time) {
	defer f.arrives(now)()
	o := observation{p: p, now: now, late: change == Listed || now.Before(f.late)}
	uid := string(p.UID)
	known, there := f.pods[uid]
	if !there {
		uid = strings.Clone(uid)
		known = pod{namespace: f.share(p.Namespace), name: strings.Clone(p.Name), images: changeable(p)}
		known.takeRequests(p)
		f.begin(o, uid, change)
		f.admitted(o)
	}
	placed := known.node == "" && p.Spec.NodeName != ""
	if placed {
		known.node = f.share(p.Spec.NodeName)
	}
	if !there || placed {
		f.replaces(o, uid)
	}
	if !there || placed || change == Gone {
		f.software(p, change)
	}
	f.upgraded(o, uid, &known)
	if p.DeletionTimestamp != nil && !known.deleting {
		known.deleting = true
		f.deletionBegins(o, uid, change == Listed && !there, known.ready)
	}
	known.ready, known.terminal, known.listed = known.ready || holds(p, corev1.PodReady) != nil, isTerminal(p), change == Listed
	f.measure(o)
	for _, a := range f.acts[uid] {
		f.observe(o, &a.Timeline)
		if change == Gone {
			a.Timeline.Set(record.Gone, o.own())
		}
		a.changed = true
		f.await(a)
	}
	if !there {
		f.recall(uid)
	}
	if change == Gone {
		delete(f.pods, uid)
		return
	}
	f.pods[uid] = known
}

// begin opens the act of a creation. An act in the first list may have been judged by the last run, or have begun
// before the first.
func (f *Follower) begin(o observation, uid string, change Change) {
	key := Key{UID: uid, Act: record.Creation}
	if f.open[key] != nil || change == Listed && f.isOld(key, o.p.CreationTimestamp.Time) {
		return
	}
	t := f.timeline(o, record.Creation, uid)
	t.Set(record.Created, o.mark(o.p.CreationTimestamp, record.APIServer))
	if o.late && isTerminal(o.p) && t.Exclude == "" {
		t.Exclude = "terminal when it was first seen"
	}
	f.add(&Act{Timeline: *t, changed: true})
}

// isOld reports whether an act in the first list does not count.
func (f *Follower) isOld(key Key, began time.Time) bool {
	if f.complete {
		return false
	}
	return f.config.Since.IsZero() || began.Before(f.config.Since) || f.config.Judged != nil && f.config.Judged(key)
}

// deletionBegins opens the act of a deletion. A pod first seen in a list may have been deleted long ago.
func (f *Follower) deletionBegins(o observation, uid string, listed, wasReady bool) {
	key, grace := Key{UID: uid, Act: record.Deletion}, seconds(o.p.DeletionGracePeriodSeconds)
	requested := metav1.Time{Time: o.p.DeletionTimestamp.Add(-grace)}
	if f.open[key] != nil || listed && f.isOld(key, requested.Time) {
		return
	}
	m := o.mark(requested, record.APIServer)
	for _, a := range f.acts[uid] {
		a.Timeline.Set(record.DeleteRequested, m)
	}
	t := f.timeline(o, record.Deletion, uid)
	t.Grace = grace
	t.Awaits = wasReady && (t.OwnerKind == "StatefulSet" || t.OwnerKind == "DaemonSet")
	t.Set(record.DeleteRequested, m)
	f.add(&Act{Timeline: *t, changed: true})
}

// upgraded opens the act of an upgrade if a ready pod now has other images or resources.
func (f *Follower) upgraded(o observation, uid string, known *pod) {
	digest := changeable(o.p)
	if digest == known.images {
		return
	}
	known.images = digest
	known.takeRequests(o.p)
	if !known.ready || o.p.DeletionTimestamp != nil {
		return
	}
	t := f.timeline(o, record.Upgrade, uid)
	t.Generation = o.p.Generation
	t.Set(record.ChangeAccepted, o.own())
	for i := range t.Containers { // the old state: a later start is the new one
		if s := statusOf(o.p, t.Containers[i].Name); s != nil && s.State.Running != nil {
			t.Containers[i].Started = o.mark(s.State.Running.StartedAt, record.Node)
		}
	}
	f.add(&Act{Timeline: *t, changed: true})
}

// timeline returns a new timeline with the recorded parts of the specification.
func (f *Follower) timeline(o observation, act record.Act, uid string) *record.Timeline {
	p := o.p
	t := &record.Timeline{Act: act, UID: uid, Namespace: f.share(p.Namespace), Name: strings.Clone(p.Name), Exclude: f.excluded(p.Namespace),
		RestartAlways: p.Spec.RestartPolicy == corev1.RestartPolicyAlways || p.Spec.RestartPolicy == "", Gated: len(p.Spec.SchedulingGates) > 0,
		Skews: map[record.Clock]time.Duration{}}
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror && t.Exclude == "" {
		t.Exclude = "static pod"
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		t.OwnerKind, t.OwnerName, t.OwnerUID = f.share(ref.Kind), strings.Clone(ref.Name), strings.Clone(string(ref.UID))
		hash := p.Labels["pod-template-hash"]
		if name, ok := strings.CutSuffix(t.OwnerName, "-"+hash); ok && ref.Kind == "ReplicaSet" && hash != "" { // a Deployment's
			t.OwnerKind, t.OwnerName = "Deployment", name
		}
	}
	// Volumes take time; those of other kinds are files written by kubelet.
	t.Volumes = slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.CSI != nil || v.NFS != nil || v.ISCSI != nil || v.Ephemeral != nil || v.Image != nil
	})
	t.Grace = seconds(p.Spec.TerminationGracePeriodSeconds)
	for _, g := range p.Spec.ReadinessGates {
		t.ReadinessGates = append(t.ReadinessGates, strings.Clone(string(g.ConditionType)))
	}
	for i := range p.Spec.InitContainers {
		t.Containers = append(t.Containers, container(&p.Spec.InitContainers[i], true))
	}
	for i := range p.Spec.Containers {
		t.Containers = append(t.Containers, container(&p.Spec.Containers[i], false))
	}
	t.CPU, t.Bytes = requests(p)
	return t
}

// seconds returns a number of seconds; 0 if there is none.
func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(max(0, *n)) * time.Second
}

// requests returns the requests of a pod as the scheduler counts them, in thousandths of a core and bytes.
func requests(p *corev1.Pod) (cpu, bytes int64) {
	all := resource.PodRequests(p, resource.PodResourcesOptions{})
	return all.Cpu().MilliValue(), all.Memory().Value()
}

func (k *pod) takeRequests(p *corev1.Pod) {
	cpu, bytes := requests(p)
	k.cpu, k.mib = int32(min(cpu, math.MaxInt32)), int32(min(bytes>>20, math.MaxInt32)) //nolint:gosec // bounded
}

func isTerminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func container(c *corev1.Container, init bool) record.Container {
	return record.Container{Name: strings.Clone(c.Name), Image: strings.Clone(c.Image), Init: init,
		Hook: c.Lifecycle != nil && c.Lifecycle.PostStart != nil, MemLimit: !c.Resources.Limits.Memory().IsZero()}
}

// changeable returns a digest of everything that an upgrade in place changes.
func changeable(p *corev1.Pod) uint64 {
	h := fnv.New64a()
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		for _, s := range [...]string{c.Name, c.Image, c.Resources.Requests.Cpu().String(), c.Resources.Requests.Memory().String(),
			c.Resources.Limits.Cpu().String(), c.Resources.Limits.Memory().String()} {
			_, _ = h.Write([]byte(s + "\x00"))
		}
	}
	return h.Sum64()
}

func statusOf(p *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		if i := slices.IndexFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// holds returns a condition that is true; nil if it is not.
func holds(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	if c := condition(p, kind); c != nil && c.Status == corev1.ConditionTrue {
		return c
	}
	return nil
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return &p.Status.Conditions[i]
	}
	return nil
}

// awaitFor is how long after the end of a pod another one replaces it: it bounds the number of kept acts.
const awaitFor = 10 * time.Minute

// place is the place of a pod that another one takes: the name in its StatefulSet, the node of its DaemonSet. Other pods
// have none.
func place(t *record.Timeline) string {
	at := t.Name
	if t.OwnerKind == "DaemonSet" {
		at = t.Node
	}
	if at == "" || t.OwnerKind != "StatefulSet" && t.OwnerKind != "DaemonSet" {
		return ""
	}
	return t.Namespace + "/" + t.OwnerKind + "/" + t.OwnerName + "/" + at
}

// await keeps the deletion of a pod that another one may replace.
func (f *Follower) await(a *Act) {
	if at := place(&a.Timeline); a.Timeline.Awaits && at != "" {
		f.leave[at] = a
	}
}

// replaces opens the act of an upgrade if a pod takes the place of a ready one: from the request of the old pod's
// deletion until the new one is ready. A pod that exists before that request is no replacement.
func (f *Follower) replaces(o observation, uid string) {
	t := f.timeline(o, record.Upgrade, uid)
	t.Node = f.share(o.p.Spec.NodeName)
	at := place(t)
	a := f.leave[at]
	if at == "" || a == nil || a.Timeline.UID == uid || o.p.CreationTimestamp.Time.Before(a.Timeline.At(record.DeleteRequested).Time) {
		return
	}
	delete(f.leave, at)
	old := &a.Timeline
	old.Awaits, a.changed = false, true
	t.Replaces, t.Grace, t.Node = old.UID, old.Grace, ""
	t.Set(record.ChangeAccepted, old.At(record.DeleteRequested))
	t.Set(record.ChangeNoticed, old.At(record.KillNoticed))
	t.Set(record.OldEnded, old.At(record.ContainersEnded))
	t.Set(record.OldEnded, old.At(record.Gone))
	for _, x := range f.acts[uid] { // the node of a DaemonSet's pod is known later than the pod
		t.Set(record.Created, x.Timeline.At(record.Created))
	}
	t.Set(record.Created, o.mark(o.p.CreationTimestamp, record.APIServer))
	f.add(&Act{Timeline: *t, changed: true})
}
