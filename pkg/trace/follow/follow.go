// Package follow keeps the timelines of all acts that are open, from what a watch shows, and has each judged once. Of a
// pod that is settled it keeps a few words; of the specification, only what package record has a field for.
package follow

import (
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	refineFor  = 10 * time.Minute // after a miss its reason may still change
	lateGrace  = 2 * time.Second  // after a gap of the watch, arrivals are upper bounds for so long
	fastBeat   = 5 * time.Second  // the longest gap where leaders renew their Leases each 2 s
	slowBeat   = 15 * time.Second // where only apiservers do, each 10 s
	leaseStale = 15 * time.Second
	slack      = 500 * time.Millisecond // streams may arrive in another order than they were sent
	youngNode  = 2 * time.Minute
)

// Config is that of a Follower.
type Config struct {
	Promised          time.Duration
	ExcludeNamespaces []string
	Classes           reason.Overrides
	// Since is from when on acts of the first list may be ours, if they are neither among Open nor Judged; zero: there was
	// no run before, and none is.
	Since time.Time
	Open  []Act // of the last run
	// Judged reports whether an act has a verdict already; nil: none has.
	Judged func(Key) bool
}

// Key names an act.
type Key struct {
	UID        string     `json:"uid"`
	Act        record.Act `json:"act"`
	Generation int64      `json:"generation,omitempty"`
}

func (k Key) String() string {
	return k.UID + " " + string(k.Act) + " " + strconv.FormatInt(k.Generation, 10)
}

// Act is an act with its judgement.
type Act struct {
	Timeline record.Timeline `json:"timeline"`
	Verdict  verdict.Verdict `json:"verdict,omitzero"`
	JudgedAt time.Time       `json:"judgedAt,omitzero"` // zero: not yet
	First    reason.Result   `json:"first,omitzero"`    // of a miss, as it was known then
	Final    reason.Result   `json:"final,omitzero"`    // as it is known now

	changed bool // since it was saved
	stored  bool // its verdict
}

// Key returns the act's name.
func (a *Act) Key() Key { return Key{a.Timeline.UID, a.Timeline.Act, a.Timeline.Generation} }

// pod is what is kept of one that lives: strings are shared with other pods where they can be.
type pod struct {
	namespace, name, node string
	images                uint64 // digest of what an upgrade in place changes
	flags                 uint8
}

const (
	deleting uint8 = 1 << iota
	ready
	listed // by the list that runs
)

// Follower is safe for concurrent use.
type Follower struct {
	config  Config
	chooser *reason.Chooser

	mu     sync.Mutex // guards what follows
	pods   map[string]pod
	open   map[Key]*Act
	acts   map[string][]*Act // by UID
	shared map[string]string
	nodes  map[string]node
	leases map[string]time.Time // arrival of the last renewal
	skews  map[string]time.Duration
	beat   time.Duration
	sign   time.Time // of life of the watch
	late   time.Time // until then arrivals are upper bounds
	hold   time.Time // until then signs of life prove nothing: what was held up may still arrive
	sure   time.Time // until then the watch has shown everything
	broken time.Time // since when the watch of pods has ended
	synced bool
	// complete: there was a list; a pod that is new since then is ours.
	complete bool
	counts   Counts
	refusals int // acts that are open
}

// Counts are those since the start.
type Counts struct {
	Pods, Open, UnknownTexts int
	UnfollowedRefusals       int // Events of refused owners that were too many
	Outcomes                 map[record.Act]map[verdict.Outcome]int
}

// New returns a follower that goes on with the acts of the last run.
func New(c Config) *Follower {
	f := &Follower{config: c, chooser: reason.NewChooser(c.Classes), pods: map[string]pod{}, open: map[Key]*Act{}, acts: map[string][]*Act{},
		shared: map[string]string{}, nodes: map[string]node{}, leases: map[string]time.Time{}, skews: map[string]time.Duration{},
		beat: slowBeat, counts: Counts{Outcomes: map[record.Act]map[verdict.Outcome]int{}}}
	for i := range c.Open {
		a := c.Open[i]
		a.stored = !a.JudgedAt.IsZero()
		f.add(&a)
	}
	return f
}

func (f *Follower) add(a *Act) {
	if a.Timeline.Act == record.Refusal {
		f.refusals++
	}
	f.open[a.Key()] = a
	f.acts[a.Timeline.UID] = append(f.acts[a.Timeline.UID], a)
}

func (f *Follower) drop(a *Act) {
	if delete(f.open, a.Key()); a.Timeline.Act == record.Refusal {
		f.refusals--
	}
	rest := slices.DeleteFunc(f.acts[a.Timeline.UID], func(x *Act) bool { return x == a })
	if f.acts[a.Timeline.UID] = rest; len(rest) == 0 {
		delete(f.acts, a.Timeline.UID)
	}
}

// share returns the one copy of a string that many pods have.
func (f *Follower) share(s string) string {
	if kept, ok := f.shared[s]; ok {
		return kept
	}
	f.shared[s] = s
	return s
}

// Alive takes a sign of life of the watch: an event, a bookmark, a Lease. A gap before it makes what arrives now late.
func (f *Follower) Alive(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
}

func (f *Follower) alive(now time.Time) {
	if !f.sign.IsZero() && now.Sub(f.sign) > f.beat {
		f.late, f.hold = now.Add(lateGrace), now.Add(lateGrace)
	}
	if now.After(f.sign) {
		f.sign = now
	}
}

// Broken says that the watch has ended: until the next list nothing more is certain.
func (f *Follower) Broken(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen(now)
	f.synced, f.broken = false, now
}

// Synced says that the list is complete, or that a watch goes on behind the last event. After a list, pods that it does
// not have are gone, we do not know since when.
func (f *Follower) Synced(now time.Time, list bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if list {
		for uid, p := range f.pods {
			if p.flags&listed == 0 {
				f.vanished(uid, p, now)
				continue
			}
			p.flags &^= listed
			f.pods[uid] = p
		}
		for _, a := range f.open { // of the last run
			if _, there := f.pods[a.Timeline.UID]; !there && a.Timeline.Act != record.Refusal {
				a.Timeline.Set(record.Gone, record.Mark{Source: record.Own, Arrival: now, Late: true})
				a.changed = true
			}
		}
	}
	f.complete = f.complete || list
	f.alive(now)
	if f.broken.IsZero() || list || now.Sub(f.broken) > lateGrace {
		f.hold = now.Add(lateGrace)
	}
	if !f.broken.IsZero() && now.Sub(f.broken) > lateGrace {
		f.late = now.Add(lateGrace)
	}
	f.synced = true
}

// vanished ends the acts of a pod whose end was not observed.
func (f *Follower) vanished(uid string, p pod, now time.Time) {
	m := record.Mark{Source: record.Own, Arrival: now, Late: true}
	if p.flags&deleting == 0 { // its deletion is an act that was not observed
		t := record.Timeline{Act: record.Deletion, UID: uid, Namespace: p.namespace, Name: p.name, Node: p.node, Exclude: f.excluded(p.namespace)}
		t.Set(record.Gone, m)
		f.add(&Act{Timeline: t, changed: true})
	}
	for _, a := range f.acts[uid] {
		a.Timeline.Set(record.Gone, m)
		a.changed = true
	}
	delete(f.pods, uid)
}

func (f *Follower) excluded(namespace string) string {
	if slices.Contains(f.config.ExcludeNamespaces, namespace) {
		return "namespace by configuration"
	}
	return ""
}

// seen is until when the watch has certainly shown everything.
func (f *Follower) seen(now time.Time) time.Time {
	if f.synced && !now.Before(f.hold) && f.sign.After(f.hold) {
		if f.sure = f.sign.Add(-slack); f.sure.After(now) {
			f.sure = now
		}
	}
	return f.sure
}

// Behind returns how far the watch is behind; a negative value if it is not synced.
func (f *Follower) Behind(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return -1
	}
	return max(0, now.Sub(f.seen(now)))
}

// Counts returns what was counted since the start.
func (f *Follower) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Counts{Pods: len(f.pods), Open: len(f.open), UnknownTexts: f.counts.UnknownTexts,
		UnfollowedRefusals: f.counts.UnfollowedRefusals, Outcomes: map[record.Act]map[verdict.Outcome]int{}}
	for act, outcomes := range f.counts.Outcomes {
		c.Outcomes[act] = map[verdict.Outcome]int{}
		for o, n := range outcomes {
			c.Outcomes[act][o] = n
		}
	}
	return c
}

// Terminating is a pod whose deletion was requested and has not ended.
type Terminating struct {
	Namespace, Name, UID, Node string
	For                        time.Duration // since the end of its grace period
	Reason                     reason.Reason
	Detail                     string
}

// Terminating returns the pods whose deletion was requested longer ago than a time plus their grace period.
func (f *Follower) Terminating(now time.Time, longer time.Duration) (found []Terminating) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.open {
		t := &a.Timeline
		requested := t.At(record.DeleteRequested)
		if t.Act != record.Deletion || !requested.Known() || t.At(record.Gone).Known() {
			continue
		}
		if age := t.Passed(requested, now).Low - t.Grace; age > longer {
			r := f.chooser.Choose(t, now, f.config.Promised)
			found = append(found, Terminating{t.Namespace, t.Name, t.UID, t.Node, age, r.Reason, r.Detail})
		}
	}
	slices.SortFunc(found, func(a, b Terminating) int { return int(b.For - a.For) })
	return found
}

// Find returns copies of the open acts of a pod, by UID or by namespace and name.
func (f *Follower) Find(uid, namespace, name string) (found []Act) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.open {
		if a.Timeline.UID == uid || uid == "" && a.Timeline.Namespace == namespace && a.Timeline.Name == name {
			found = append(found, clone(a))
		}
	}
	return found
}

// clone copies what changes later.
func clone(a *Act) Act {
	c := *a
	t := &c.Timeline
	t.Marks = map[record.Point]record.Mark{}
	for p, m := range a.Timeline.Marks {
		t.Marks[p] = m
	}
	t.Containers, t.Pulls, t.Errors = slices.Clone(t.Containers), slices.Clone(t.Pulls), slices.Clone(t.Errors)
	t.Finalizers = slices.Clone(t.Finalizers)
	return c
}

// isStatic reports whether a pod is kubelet's own: the apiserver shows a mirror of it.
func isStatic(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}
