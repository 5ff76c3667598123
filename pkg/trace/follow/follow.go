// Package follow keeps the timelines of all open acts, as observed by a watch, and gets each judged once. For a settled
// pod it keeps a few words; of the specification, only fields in package record.
package follow

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	refineFor  = 10 * time.Minute // how long the reason of a miss may change
	lateGrace  = 2 * time.Second  // how long after a gap of the watch arrivals are upper bounds
	fastBeat   = 5 * time.Second  // the longest gap if leaders renew their Leases every 2 s
	slowBeat   = 15 * time.Second // if only apiservers do, every 10 s
	leaseStale = 15 * time.Second
	stopped    = 1500 * time.Millisecond // the longest gap between ticks of a process that runs
	slack      = 500 * time.Millisecond  // streams may arrive in a different order than sent
	youngNode  = 2 * time.Minute
)

// Config is the configuration of a Follower.
type Config struct {
	Promised          time.Duration
	ExcludeNamespaces []string
	PoolLabel         string // the label of a Node whose value is its pool; empty: there is one pool
	Classes           reason.Overrides
	// Since is when acts in the first list begin to count if they are neither in Open nor Judged; zero: there was no
	// earlier run, and none count.
	Since time.Time
	Open  []Act // from the last run
	// Judged reports whether an act already has a verdict; nil: none has.
	Judged func(Key) bool
}

// Key identifies an act.
type Key struct {
	UID        string     `json:"uid"`
	Act        record.Act `json:"act"`
	Generation int64      `json:"generation,omitempty"`
}

func (k Key) String() string {
	return k.UID + " " + string(k.Act) + " " + strconv.FormatInt(k.Generation, 10)
}

// Act is an act with its verdict.
type Act struct {
	Timeline record.Timeline `json:"timeline"`
	Verdict  verdict.Verdict `json:"verdict,omitzero"`
	JudgedAt time.Time       `json:"judgedAt,omitzero"` // zero: not yet
	First    reason.Result   `json:"first,omitzero"`    // for a miss, the reason at that time
	Final    reason.Result   `json:"final,omitzero"`    // the reason known now

	changed bool // since the last save
	stored  bool // its verdict
}

// Key returns the act's name.
func (a *Act) Key() Key { return Key{a.Timeline.UID, a.Timeline.Act, a.Timeline.Generation} }

// pod is the state of a live pod: strings are shared with other pods if possible.
type pod struct {
	namespace, name, node string
	images                uint64 // digest of everything that an upgrade in place changes
	deleting, ready       bool
	listed                bool  // in the present list
	terminal              bool  // Succeeded or Failed: it needs no room
	cpu, mib              int32 // requests, in thousandths of a core and MiB
}

// Follower is safe for concurrent use.
type Follower struct {
	config Config

	mu        sync.Mutex // guards the fields below
	pods      map[string]pod
	open      map[Key]*Act
	acts      map[string][]*Act // by UID
	shared    map[string]string
	leave     map[string]*Act // deletions of pods that may be replaced, by place
	early     []early
	newest    map[string]newest // by the owner's UID
	nodes     map[string]node
	leases    map[string]time.Time   // arrival of the last renewal
	builds    map[int64]record.Build // by ID
	plugins   map[string][]plugin    // by node
	control   map[controlPlane]string
	eventless time.Time // since when Events cannot be read; zero: they can
	skews     map[string]time.Duration
	beat      time.Duration
	sign      time.Time // the watch's latest sign of life
	tick      time.Time // when this process has run last; zero: it does not tell
	late      time.Time // until then, arrivals are upper bounds
	hold      time.Time // until then, signs of life prove no completeness: delayed objects may still arrive
	sure      time.Time // the watch has shown everything until then
	began     time.Time // of the first watch
	broken    time.Time // since when the watch of pods is interrupted
	synced    bool
	// complete: there was a list; new pods since then count.
	complete bool
	counts   Counts
	refusals int // open acts of refusals
	unstored int // open acts whose verdict is not stored
	room     int // for those
}

// Counts are the counts since the start.
type Counts struct {
	Pods, Open, UnknownTexts  int
	UnfollowedRefusals        int // Events of refused owners beyond the limit
	Evidence, EvidenceIgnored int // from the agents: taken; about unknown pods, or not plausible
	Unstored, Lost            int // verdicts that wait for the store, and that had no room to wait
	// Acts are the numbers of acts with the same verdict, of misses by their first reason. The keys have no numbers.
	Acts map[sli.Count]int
}

// New returns a follower that continues with the acts of the last run.
func New(c Config) *Follower {
	f := &Follower{config: c, pods: map[string]pod{}, open: map[Key]*Act{}, acts: map[string][]*Act{},
		shared: map[string]string{}, leave: map[string]*Act{}, newest: map[string]newest{}, nodes: map[string]node{}, builds: map[int64]record.Build{},
		plugins: map[string][]plugin{}, control: map[controlPlane]string{}, leases: map[string]time.Time{}, skews: map[string]time.Duration{},
		beat: slowBeat, room: maxUnstored, counts: Counts{Acts: map[sli.Count]int{}}}
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
	f.await(a)
}

func (f *Follower) drop(a *Act) {
	if delete(f.open, a.Key()); a.Timeline.Act == record.Refusal {
		f.refusals--
	}
	if at := place(&a.Timeline); f.leave[at] == a {
		delete(f.leave, at)
	}
	rest := slices.DeleteFunc(f.acts[a.Timeline.UID], func(x *Act) bool { return x == a })
	if f.acts[a.Timeline.UID] = rest; len(rest) == 0 {
		delete(f.acts, a.Timeline.UID)
	}
}

// share returns a shared copy of a string that many pods have.
func (f *Follower) share(s string) string {
	if kept, ok := f.shared[s]; ok {
		return kept
	}
	f.shared[s] = s
	return s
}

// Alive takes a sign of life of the watch: an event, a bookmark, a Lease. After a gap, the next arrivals are late.
func (f *Follower) Alive(now time.Time) { f.arrives(now)() }

// arrives takes a sign of life, and keeps mu until done is called.
func (f *Follower) arrives(now time.Time) (done func()) {
	f.mu.Lock()
	f.alive(now)
	return f.mu.Unlock
}

// Tick records, several times a second, that this process runs. After a longer pause, the next arrivals are late.
func (f *Follower) Tick(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gap(f.tick, now, stopped)
	f.tick = now
}

// gap recognizes that this process was stopped, or the watch was silent: others may have sent much that is not read yet.
func (f *Follower) gap(last, now time.Time, longest time.Duration) {
	if !last.IsZero() && now.Sub(last) > longest {
		f.late, f.hold = now.Add(lateGrace), now.Add(lateGrace)
	}
}

func (f *Follower) alive(now time.Time) {
	f.gap(f.tick, now, stopped)
	f.gap(f.sign, now, f.beat)
	if now.After(f.sign) {
		f.sign = now
	}
}

// Broken records that the watch is interrupted, or that a list begins: until it is read the state is uncertain.
func (f *Follower) Broken(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen(now)
	if f.synced || f.broken.IsZero() { // a failed attempt to continue does not shorten the gap
		f.broken = now
	}
	f.synced = false
}

// Events records whether Events can be read.
func (f *Follower) Events(can bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case can:
		f.eventless = time.Time{}
	case f.eventless.IsZero():
		f.eventless = now
	}
}

// Synced records that the list is complete, or that a watch continues after the last event. Pods missing from a list
// are gone, at an unknown time.
func (f *Follower) Synced(now time.Time, list bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if list {
		for uid, p := range f.pods {
			if !p.listed {
				f.vanished(uid, p, now)
				continue
			}
			p.listed = false
			f.pods[uid] = p
		}
		for _, a := range f.open { // from the last run
			if _, there := f.pods[a.Timeline.UID]; !there && a.Timeline.Act != record.Refusal {
				a.Timeline.Set(record.Gone, record.Mark{Source: record.Own, Arrival: now, Late: true})
				a.changed = true
			}
		}
	}
	f.complete = f.complete || list
	f.began = cmp.Or(f.began, now)
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
	if !p.deleting { // its deletion is an unobserved act
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

// seen returns the time up to which the watch has certainly shown everything.
func (f *Follower) seen(now time.Time) time.Time {
	if f.synced && !now.Before(f.hold) && f.sign.After(f.hold) {
		f.sure = record.Earlier(f.sign.Add(-slack), now)
	}
	return f.sure
}

// Behind returns the delay of the watch; -1 s if it is not synced.
func (f *Follower) Behind(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return -time.Second
	}
	return max(0, now.Sub(cmp.Or(f.seen(now), f.began))) // without a sign of life, since the start
}

// Counts returns the counts since the start.
func (f *Follower) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	c.Pods, c.Open, c.Unstored = len(f.pods), len(f.open), f.unstored
	c.Acts = maps.Clone(c.Acts)
	return c
}

// Terminating is a pod with a requested, unfinished deletion.
type Terminating struct {
	Namespace, Name, UID, Node string
	For                        time.Duration // since the end of the grace period
	Reason                     reason.Reason
	Detail                     string
}

// Leftover is how long after the request of its deletion and its grace period a pod is a leftover.
const Leftover = 10 * time.Minute

// Terminating returns the leftover pods of a namespace; empty: of all.
func (f *Follower) Terminating(now time.Time, namespace string) (found []Terminating) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.open {
		t := &a.Timeline
		requested := t.At(record.DeleteRequested)
		if t.Act != record.Deletion || !requested.Known() || t.At(record.Gone).Known() || namespace != "" && t.Namespace != namespace {
			continue
		}
		if age := t.Passed(requested, now).Low - t.Grace; age > Leftover {
			r := f.config.Classes.Choose(t, now, f.config.Promised)
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

// clone copies all parts that may change later.
func clone(a *Act) Act {
	c := *a
	t := &c.Timeline
	t.Marks = maps.Clone(t.Marks)
	t.Containers, t.Pulls, t.Errors = slices.Clone(t.Containers), slices.Clone(t.Pulls), slices.Clone(t.Errors)
	t.Finalizers = slices.Clone(t.Finalizers)
	return c
}
