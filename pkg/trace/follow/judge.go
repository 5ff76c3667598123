package follow

import (
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	maxBatch = 5000 // verdicts stored at once
	// maxUnstored is how many verdicts wait while the store is away; further ones are counted as lost.
	maxUnstored = 50_000
)

// Batch is stored as a whole.
type Batch struct {
	Alive    time.Time // everything until then is in this batch or earlier ones
	Judged   []Act     // new verdicts: each act once
	Refined  []Act     // misses whose reason is now final
	Open     []Act     // changed since the last save
	Finished []Key     // no longer open
}

// Judge judges the acts that are due, and returns a batch to store. After that, the caller must call Stored with it.
func (f *Follower) Judge(now time.Time) Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Events of earlier refusals are not expected any more.
	maps.DeleteFunc(f.newest, func(_ string, pod newest) bool { return now.Sub(pod.Arrival) > eventsDelayed })
	b := Batch{Alive: f.seen(now)}
	for key, a := range f.open {
		if a.JudgedAt.IsZero() {
			if f.judge(a, now); f.open[key] == nil {
				continue
			}
		}
		missed := a.Verdict.Outcome == verdict.Missed
		switch {
		case a.JudgedAt.IsZero():
		case !a.stored && len(b.Judged) >= maxBatch: // the next turn
			continue
		case !a.stored:
			b.Judged = append(b.Judged, clone(a))
			if !missed && !needed(&a.Timeline, now) {
				b.Finished = append(b.Finished, key)
				continue
			}
			a.changed = true
		case missed && now.Sub(a.JudgedAt) < refineFor, needed(&a.Timeline, now):
		case a.Timeline.Act == record.Deletion && !a.Timeline.At(record.Gone).Known(): // shown as Terminating until it ends
		default:
			if missed {
				f.applySkews(&a.Timeline) // with everything learnt since
				a.Final = f.config.Classes.Choose(&a.Timeline, f.deadline(a), f.config.Promised)
				b.Refined = append(b.Refined, clone(a))
			}
			b.Finished = append(b.Finished, key)
			continue
		}
		if a.changed {
			b.Open = append(b.Open, clone(a))
			a.changed = false
		}
	}
	return b
}

// needed reports whether an act is needed after its verdict: further refusals belong to it, or another pod may replace the
// deleted one.
func needed(t *record.Timeline, now time.Time) bool {
	gone, refused := t.At(record.Gone), t.At(record.RefusedLast)
	return t.Act == record.Refusal && !t.At(record.Admitted).Known() && now.Sub(refused.Arrival) < quietFor ||
		t.Awaits && gone.Known() && now.Sub(gone.Arrival) < awaitFor
}

func (f *Follower) judge(a *Act, now time.Time) {
	f.applySkews(&a.Timeline)
	a.Timeline.NoEvents = !f.eventless.IsZero() && now.Sub(f.eventless) > slowBeat
	a.Verdict = verdict.Judge(&a.Timeline, f.config.Promised, now, f.seen(now))
	if a.Verdict.Outcome == verdict.Open {
		return
	}
	if f.unstored >= f.room {
		f.counts.Lost++
		f.drop(a)
		return
	}
	f.unstored++
	a.JudgedAt = now
	a.Timeline.Build = f.buildOf(a.Timeline.Node)
	if a.Verdict.Outcome == verdict.Missed {
		a.Timeline.Around = f.around(&a.Timeline, now)
		a.First = f.config.Classes.Choose(&a.Timeline, f.deadline(a), f.config.Promised)
		a.Final = a.First
	}
	f.counts.Acts[sli.Count{Act: a.Timeline.Act, Outcome: a.Verdict.Outcome, Class: a.First.Class, Reason: string(a.First.Reason)}]++
}

// deadline returns when the act was due; for an act that ended earlier, the reason is that of its end.
func (f *Follower) deadline(a *Act) time.Time {
	return record.Earlier(a.Timeline.Begin().Arrival.Add(f.config.Promised+a.Verdict.User), a.JudgedAt)
}

// around returns the present state of other objects.
func (f *Follower) around(t *record.Timeline, now time.Time) (s record.Surroundings) {
	n, known := f.nodes[t.Node]
	s.NodeLost = known && n.ready.IsZero() || t.Node != "" && !known && len(f.nodes) > 0
	renewed, led := f.leases["kube-scheduler"]
	s.SchedulerStale = led && f.seen(now).Sub(renewed) > leaseStale
	s.VictimsPresent = t.At(record.Nominated).Known() && t.Node == ""
	s.ExceedsNodes = len(f.nodes) > 0 && (t.CPU > 0 || t.Bytes > 0)
	for _, n := range f.nodes {
		s.FaultTaints = s.FaultTaints || n.tainted
		s.ExceedsNodes = s.ExceedsNodes && (t.CPU > n.cpu || t.Bytes > n.bytes)
	}
	return s
}

// Stored records that a batch is stored.
func (f *Follower) Stored(b Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range b.Judged {
		if a := f.open[b.Judged[i].Key()]; a != nil {
			f.keep(a)
		}
	}
	for _, key := range b.Finished {
		if a := f.open[key]; a != nil {
			f.drop(a)
		}
	}
}

// Elsewhere records that another replica writes, and has stored everything until a time: this one keeps the newer
// verdicts, and stores them if it must take over.
func (f *Follower) Elsewhere(b Batch, until time.Time) {
	f.Failed(b)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range b.Finished {
		if a := f.open[key]; a != nil && a.stored {
			f.drop(a)
		}
	}
	for _, a := range f.open {
		if !a.JudgedAt.IsZero() && !a.stored && a.JudgedAt.Before(until) {
			f.keep(a)
		}
	}
}

// Adopt continues with the open acts of the replica that wrote until now.
func (f *Follower) Adopt(acts []Act, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range acts {
		a := acts[i]
		t := &a.Timeline
		if f.open[a.Key()] != nil {
			continue
		}
		if _, there := f.pods[t.UID]; !there && t.Act != record.Refusal {
			t.Set(record.Gone, record.Mark{Source: record.Own, Arrival: now, Late: true})
		}
		a.stored, a.changed = !a.JudgedAt.IsZero(), true
		f.add(&a)
	}
}

// keep marks the verdict of an act as stored.
func (f *Follower) keep(a *Act) {
	if !a.stored {
		a.stored = true
		f.unstored--
	}
}

// Failed records that a batch could not be stored: its contents must be saved again.
func (f *Follower) Failed(b Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range b.Open {
		if a := f.open[b.Open[i].Key()]; a != nil {
			a.changed = true
		}
	}
}
