package follow

import (
	"strconv"
	"testing"
	"time"
)

// A replica that does not write keeps its verdicts until the other one has certainly stored them, and continues with the
// other's open acts when it takes over.
func TestStandby(t *testing.T) {
	w := newWorld(Config{})
	w.Pod(newPod("a", readyAt(1)), Watched, second(1))
	w.Pod(newPod("b", readyAt(1)), Watched, second(1))
	b := w.Judge(second(2))
	if len(b.Judged) != 2 || w.Counts().Unstored != 2 {
		t.Fatalf("%d verdicts, %d unstored", len(b.Judged), w.Counts().Unstored)
	}
	w.Elsewhere(b, second(2)) // the other may not have this verdict yet
	if b = w.Judge(second(3)); len(b.Judged) != 2 {
		t.Errorf("%d verdicts wait, want 2", len(b.Judged))
	}
	w.Elsewhere(b, second(2.5))
	b = w.Judge(second(4))
	w.Elsewhere(b, second(3))
	if b = w.Judge(second(5)); len(b.Judged) != 0 || w.Counts().Open != 0 || w.Counts().Unstored != 0 {
		t.Errorf("%d verdicts wait, %d acts are open, %d unstored, after the other replica has stored all", len(b.Judged), w.Counts().Open, w.Counts().Unstored)
	}

	other := newWorld(Config{})
	other.Pod(newPod("c"), Watched, second(1))
	w.Pod(newPod("d"), Watched, second(1))
	var acts []Act
	for _, a := range other.Follower.open {
		acts = append(acts, clone(a))
	}
	w.Adopt(append(acts, w.Find("uid-d", "", "")...), second(6))
	if n := w.Counts().Open; n != 2 {
		t.Errorf("%d open acts, want those of c and d", n)
	}
	w.now = 6
	w.until(100) // c was gone when this replica took over, before it was due
	if w.outcomes() != "creation excluded, creation missed SchedulerSlow" {
		t.Error(w.outcomes())
	}
}

// While the store is away, a bounded number of verdicts waits; further ones are counted.
func TestStoreIsAway(t *testing.T) {
	w := newWorld(Config{ExcludeNamespaces: []string{"default"}})
	const more = 10
	w.room = maxBatch + 100
	for i := range w.room + more {
		w.Pod(newPod(strconv.Itoa(i)), Watched, second(1))
	}
	var b Batch
	for i := range 3 {
		b = w.Judge(second(2).Add(time.Duration(i) * time.Second))
		w.Failed(b)
	}
	if c := w.Counts(); len(b.Judged) != maxBatch || c.Unstored != w.room || c.Lost != more {
		t.Errorf("%d in a batch, %d wait, %d are lost", len(b.Judged), c.Unstored, c.Lost)
	}
	for range 2 { // the store is back
		b = w.Judge(second(6))
		w.Stored(b)
	}
	if c := w.Counts(); c.Unstored != 0 || c.Open != 0 {
		t.Errorf("%d wait, %d are open", c.Unstored, c.Open)
	}
}
