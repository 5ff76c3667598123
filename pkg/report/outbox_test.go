package report_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

var discard = slog.New(slog.DiscardHandler)

func item(id string, s finding.Severity) report.Item {
	return report.Item{ID: id, Key: "K", Severity: s, Count: 1, Body: []byte(`{}`)}
}

// drain returns the IDs in the order in which they are sent.
func drain(o *report.Outbox) []string {
	var ids []string
	for {
		next, ok := o.Next()
		if !ok {
			return ids
		}
		ids = append(ids, next.ID)
		o.Remove(next.ID)
	}
}

func TestOverflowDropsTheOldestOfTheLeastSevere(t *testing.T) {
	o := report.NewOutbox(4, nil, discard)
	for i, s := range []finding.Severity{finding.Fatal, finding.Info, finding.Warning, finding.Info, finding.Fatal,
		finding.Warning, finding.Info, finding.Warning} {
		o.Add(item(fmt.Sprintf("%d-%s", i, s), s))
	}
	o.Add(item("0-fatal", finding.Fatal)) // reported twice
	if diff := cmp.Diff(map[finding.Severity]int{finding.Info: 3, finding.Warning: 1}, o.TakeDropped()); diff != "" {
		t.Error(diff)
	}
	if len(o.TakeDropped()) != 0 {
		t.Error("dropped twice")
	}
	if diff := cmp.Diff([]string{"0-fatal", "4-fatal", "5-warning", "7-warning"}, drain(o)); diff != "" {
		t.Error(diff)
	}
}

// For any sequence: never more than the limit, every loss is counted, and no item is dropped while a less severe one
// stays.
func TestOutboxIsBounded(t *testing.T) {
	severities := []finding.Severity{finding.Fatal, finding.Warning, finding.Info}
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		o := report.NewOutbox(limit, nil, discard)
		added, removed, dropped := 0, 0, map[finding.Severity]int{}
		for i := range rapid.IntRange(0, 60).Draw(t, "n") {
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				if next, ok := o.Next(); ok {
					o.Remove(next.ID)
					removed++
				}
				continue
			}
			o.Add(item(fmt.Sprint(i), rapid.SampledFrom(severities).Draw(t, "severity")))
			added++
			for s, n := range o.TakeDropped() {
				dropped[s] += n
			}
			if o.Len() > limit {
				t.Fatalf("%d items, limit %d", o.Len(), limit)
			}
		}
		lost := dropped[finding.Fatal] + dropped[finding.Warning] + dropped[finding.Info]
		if added != removed+lost+o.Len() {
			t.Fatalf("%d added, %d removed, %d dropped, %d left", added, removed, lost, o.Len())
		}
	})
}

func TestOutboxSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := reporttest.NewStore()
		o := report.NewOutbox(10, store, discard)
		stop := o.Start(t.Context())
		for _, id := range []string{"a", "b", "c"} {
			o.Add(item(id, finding.Warning))
		}
		o.Remove("b")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := store.Put("torn", []byte(`{"id":`)); err != nil {
			t.Fatal(err)
		}
		o = report.NewOutbox(10, store, discard)
		stop = o.Start(t.Context())
		o.Add(item("d", finding.Warning))
		if diff := cmp.Diff([]string{"a", "c", "d"}, drain(o)); diff != "" {
			t.Error(diff)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if store.Len() != 0 {
			t.Errorf("%d records left in the store", store.Len())
		}
	})
}

func TestStoreThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := reporttest.NewStore()
		store.Fail(errors.New("no space left on device"))
		w := report.NewWriteBehind(store, discard)
		stop := w.Start(t.Context())
		w.Put("key", []byte("old"))
		time.Sleep(30 * time.Minute)
		if n := len(store.Attempts()); n < 29 || n > 32 {
			t.Errorf("%d attempts in half an hour", n)
		}
		w.Put("key", []byte("new"))
		store.Mend()
		time.Sleep(2 * time.Minute)
		if store.Len() != 1 {
			t.Error("not stored once the store works again")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A store that hangs for ever (a disk that is gone) does not keep the agent from exiting. Its goroutine is left: a
// thread in the D state cannot be ended. Here the test unblocks it at the end.
func TestStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hung{release: make(chan struct{})}
		w := report.NewWriteBehind(store, discard)
		stop := w.Start(t.Context())
		w.Put("key", []byte("value"))
		time.Sleep(time.Minute)
		began := time.Now()
		w.Put("key", []byte("newer"))
		if err := stop(); err == nil || time.Since(began) > 3*time.Second {
			t.Errorf("ended after %s with %v", time.Since(began), err)
		}
		close(store.release)
	})
}

type hung struct{ release chan struct{} }

func (h hung) PutAll(map[string][]byte) error                     { <-h.release; return nil }
func (h hung) Delete(string) error                                { return nil }
func (h hung) ForEach(func(key string, value []byte) error) error { return nil }
