package deliver_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
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

// While the dead letters of a subscription are deleted, others are added and removed, and the lists of every minute
// leave it alone; its name stays taken.
func TestRemoveHoldsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, slow := withLetters(t)
		removed := make(chan error, 1)
		go func() { removed <- k.Remove(t.Context(), deliver.Who{}, "a") }()
		<-slow.begun
		again := deliver.Subscription{Name: "a", URL: "https://hooks.example.com/a"}
		if err := k.Add(t.Context(), deliver.Who{}, again); !errors.Is(err, deliver.ErrRefused) {
			t.Errorf("added again, which would lose its new dead letters: %v", err)
		}
		must(t, k.Add(t.Context(), deliver.Who{}, deliver.Subscription{Name: "other", URL: again.URL}))
		must(t, k.Remove(t.Context(), deliver.Who{}, "other"))
		time.Sleep(2 * time.Minute)
		select {
		case <-slow.begun:
			t.Error("a list removes it, too")
			slow.goOn <- nil
		default:
		}
		for range 2 {
			slow.goOn <- nil
			select {
			case <-slow.begun:
			case err := <-removed:
				must(t, err)
			}
		}
		if letters, err := k.DeadLetters(t.Context(), ""); err != nil || len(letters) > 0 {
			t.Errorf("left behind: %v, %v", letters, err)
		}
		must(t, k.Add(t.Context(), deliver.Who{}, again))
		k.stop()
	})
}

// A removal that continues after another worker has finished it leaves the new subscription of that name alone.
func TestRemoveLate(t *testing.T) {
	k, slow := withLetters(t)
	removed := make(chan error, 1)
	go func() { removed <- k.Remove(t.Context(), deliver.Who{}, "a") }()
	<-slow.begun
	was, err := k.config.Store.Get(t.Context(), "cursors", "a")
	must(t, err)
	must(t, k.config.Store.Delete(t.Context(), "cursors", "a", was.Revision))
	_, err = k.config.Store.Put(t.Context(), "cursors", "a", []byte("new"), 0)
	must(t, err)
	slow.goOn <- nil
	<-slow.begun
	slow.goOn <- nil
	if err := <-removed; !errors.Is(err, control.ErrConflict) {
		t.Error(err)
	}
	if now, err := k.config.Store.Get(t.Context(), "cursors", "a"); err != nil || string(now.Value) != "new" {
		t.Errorf("%s, %v", now.Value, err)
	}
}

// hooked is a store that calls a function after each successful Put.
type hooked struct {
	control.Store
	put func(bucket, value string) error
}

func (s hooked) Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (uint64, error) {
	next, err := s.Store.Put(ctx, bucket, key, value, revision)
	if err == nil {
		err = s.put(bucket, string(value))
	}
	return next, err
}

// hook restarts the manager on a store that calls put.
func (k *kit) hook(put func(bucket, value string) error) {
	k.stop()
	k.wrap = func(s control.Store) control.Store { return hooked{s, put} }
	k.start()
}

// An addition that another worker overtakes leaves that one's position alone.
func TestAddLate(t *testing.T) {
	k := newKit(t, hooks(), &receiver{})
	k.hook(func(bucket, _ string) error {
		if bucket == "audit" {
			_, err := k.config.Store.(hooked).Store.Put(t.Context(), "cursors", "a", []byte("new"), 0)
			return err
		}
		return nil
	})
	one := deliver.Subscription{Name: "a", URL: "https://hooks.example.com/a"}
	if err := k.Add(t.Context(), deliver.Who{}, one); err == nil {
		t.Error("added")
	}
	if now, err := k.config.Store.Get(t.Context(), "cursors", "a"); err != nil || string(now.Value) != "new" {
		t.Errorf("%s, %v", now.Value, err)
	}
}

// A change whose write is done although its answer is lost ends as if it had been interrupted.
func TestAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, hooks(), &receiver{})
		var lost atomic.Bool
		k.hook(func(bucket, value string) error {
			if lost.Load() && bucket == "subscriptions" && strings.HasSuffix(value, `ing":true}`) {
				return errors.New("no answer")
			}
			return nil
		})
		lost.Store(true)
		one := deliver.Subscription{Name: "a", URL: "https://hooks.example.com/a"}
		if err := k.Add(t.Context(), deliver.Who{}, one); err == nil || errors.Is(err, deliver.ErrRefused) {
			t.Errorf("add: %v", err)
		}
		lost.Store(false)
		must(t, k.Add(t.Context(), deliver.Who{}, one))
		lost.Store(true)
		if err := k.Remove(t.Context(), deliver.Who{}, "a"); err == nil {
			t.Error("removed without an answer")
		}
		lost.Store(false)
		time.Sleep(2 * time.Minute)
		if list := k.List(); len(list) > 0 {
			t.Errorf("it goes on: %+v", list)
		}
		must(t, k.Add(t.Context(), deliver.Who{}, one))
		k.stop()
	})
}

// hung is a store whose lists never end.
type hung struct{ control.Store }

func (hung) List(ctx context.Context, _, _ string) ([]control.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A list that does not end does not keep a new worker from trying again, nor others from changing subscriptions.
func TestListHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, hooks(), &receiver{})
		k.stop()
		k.config.Store = hung{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := deliver.Open(ctx, k.config); err == nil || ctx.Err() != nil {
			t.Errorf("%v, %v", err, ctx.Err())
		}
	})
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
