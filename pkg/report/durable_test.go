package report_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// TestVictimsDoNotComeBack: items that an outbox gave up and counted as lost are not reported after a restart.
func TestVictimsDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := reporttest.NewStore()
		o := report.NewOutbox(2, store, discard)
		stop := o.Start(t.Context())
		o.Add(item("victim", finding.Info))
		synctest.Wait() // it is in the store
		o.Add(item("a", finding.Warning))
		o.Add(item("b", finding.Warning))
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, drain(report.NewOutbox(10, store, discard))); diff != "" {
			t.Errorf("after a restart (-want +got):\n%s", diff)
		}
	})
}

// TestOvertakenValueIsNotWritten: a value whose write failed must not overwrite a newer one.
func TestOvertakenValueIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &overtaking{}
		w := report.NewWriteBehind(store, slog.New(slog.DiscardHandler))
		store.first = func() { w.Put("key", []byte("new")) }
		stop := w.Start(t.Context())
		w.Put("key", []byte("old"))
		time.Sleep(5 * time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"old", "new"}, store.written()); diff != "" {
			t.Errorf("tried to write (-want +got):\n%s", diff)
		}
	})
}

// overtaking fails the first write, and calls first during it.
type overtaking struct {
	first func()

	mu  sync.Mutex // guards all
	put []string
}

func (o *overtaking) PutAll(values map[string][]byte) error {
	o.mu.Lock()
	o.put = append(o.put, string(values["key"]))
	n := len(o.put)
	o.mu.Unlock()
	if n == 1 {
		o.first()
		return fmt.Errorf("no space left on device")
	}
	return nil
}

func (o *overtaking) written() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.put
}

func (o *overtaking) Delete(string) error                                { return nil }
func (o *overtaking) ForEach(func(key string, value []byte) error) error { return nil }

// TestUsedBudgetsAreRemembered: a storm under many names does not refill the used budget of one of them.
func TestUsedBudgetsAreRemembered(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := report.NewBudgets(2, time.Hour)
	for b.Take("storm", now) {
	}
	for i := range 5000 {
		b.Take(fmt.Sprint(i), now)
	}
	if b.Take("storm", now) {
		t.Error("a used budget is full again after 5,000 other keys")
	}
}
