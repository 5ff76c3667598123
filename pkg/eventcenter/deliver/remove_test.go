package deliver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// slowDeletion is a store that deletes each dead letter when the test permits it, or fails.
type slowDeletion struct {
	control.Store
	begun chan struct{}
	goOn  chan error
}

func (s slowDeletion) Delete(ctx context.Context, bucket, key string, revision uint64) error {
	if bucket == "dead-letters" {
		s.begun <- struct{}{}
		if err := <-s.goOn; err != nil {
			return err
		}
	}
	return s.Store.Delete(ctx, bucket, key, revision)
}

// withLetters returns a kit whose store deletes slowly, and whose subscription has two dead letters.
func withLetters(t *testing.T) (*kit, slowDeletion) {
	t.Helper()
	k := newKit(t, hooks(), &receiver{})
	k.add(deliver.Subscription{})
	for _, key := range []string{"a.1", "a.2"} {
		_, err := k.config.Store.Put(t.Context(), "dead-letters", key, []byte("{}"), 0)
		must(t, err)
	}
	k.stop()
	slow := slowDeletion{nil, make(chan struct{}), make(chan error)}
	k.wrap = func(s control.Store) control.Store {
		slow.Store = s
		return slow
	}
	k.start()
	return k, slow
}

// While the dead letters of a subscription are deleted, others are added and removed; its name stays taken.
func TestRemoveHoldsNoLock(t *testing.T) {
	k, slow := withLetters(t)
	removed, others := make(chan error, 1), make(chan error, 1)
	go func() { removed <- k.Remove(t.Context(), deliver.Who{}, "a") }()
	<-slow.begun
	again := deliver.Subscription{Name: "a", URL: "https://hooks.example.com/a"}
	go func() {
		if err := k.Add(t.Context(), deliver.Who{}, again); !errors.Is(err, deliver.ErrRefused) {
			t.Errorf("added again, which would lose its new dead letters: %v", err)
		}
		err := k.Add(t.Context(), deliver.Who{}, deliver.Subscription{Name: "other", URL: again.URL})
		others <- errors.Join(err, k.Remove(t.Context(), deliver.Who{}, "other"))
	}()
	select {
	case err := <-others:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("another subscription waits")
	}
	slow.goOn <- nil
	<-slow.begun
	slow.goOn <- nil
	must(t, <-removed)
	must(t, k.Add(t.Context(), deliver.Who{}, again))
}

// A removal that is interrupted is finished after the next start: the subscription does not come back.
func TestRemoveInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, slow := withLetters(t)
		go func() {
			<-slow.begun
			slow.goOn <- nil
			<-slow.begun
			slow.goOn <- errors.New("killed")
		}()
		if err := k.Remove(t.Context(), deliver.Who{}, "a"); err == nil {
			t.Error("it is removed although a dead letter is left")
		}
		k.stop()
		k.wrap = nil
		k.start()
		if list := k.List(); len(list) > 0 {
			t.Errorf("it is back: %+v", list)
		}
		time.Sleep(2 * time.Minute)
		if letters, err := k.DeadLetters(t.Context(), ""); err != nil || len(letters) > 0 {
			t.Errorf("left behind: %v, %v", letters, err)
		}
		if records, err := k.config.Store.List(t.Context(), "cursors", ""); err != nil || len(records) > 0 {
			t.Errorf("left behind: %v, %v", records, err)
		}
		must(t, k.Add(t.Context(), deliver.Who{}, deliver.Subscription{Name: "a", URL: "https://hooks.example.com/a"}))
		k.stop()
	})
}

// An addition that is interrupted takes its name for a short time only.
func TestAddInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, hooks(), &receiver{})
		_, err := k.config.Store.Put(t.Context(), "subscriptions", "a", []byte(`{"adding":true}`), 0)
		must(t, err)
		k.stop()
		k.start()
		if list := k.List(); len(list) > 0 {
			t.Errorf("%+v", list)
		}
		time.Sleep(2 * time.Minute)
		k.add(deliver.Subscription{})
		k.stop()
	})
}
