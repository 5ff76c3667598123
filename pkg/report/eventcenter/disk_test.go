package eventcenter_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// disk is a store on a faulty disk.
type disk struct {
	report.Store
	before func() error // runs before each call
}

func (d disk) PutAll(values map[string][]byte) error {
	return cmp.Or(d.before(), d.Store.PutAll(values))
}
func (d disk) Delete(key string) error { return cmp.Or(d.before(), d.Store.Delete(key)) }
func (d disk) ForEach(f func(key string, value []byte) error) error {
	return cmp.Or(d.before(), d.Store.ForEach(f))
}

// hanging returns a disk that hangs until the test ends.
func hanging(t *testing.T) report.Store {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return disk{reporttest.NewStore(), func() error { <-over; return errors.New("the disk is gone") }}
}

// The most important fault is the disk's own: it is sent in every state of that disk, even before the store was read.
func TestFatalLeavesWithoutTheDisk(t *testing.T) {
	for name, store := range map[string]func(*testing.T) report.Store{
		"hung": hanging, "none": func(*testing.T) report.Store { return nil },
		"read-only": func(*testing.T) report.Store {
			return disk{reporttest.NewStore(), func() error { return errors.New("read-only file system") }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &center{}
			synctest.Test(t, func(t *testing.T) {
				config, _ := config(c)
				over := make(chan struct{})
				config.Store, config.Settings.TokenFile = store(t), "/on/the/same/disk"
				reads := 0
				config.ReadFile = func(string) ([]byte, error) {
					if reads++; reads > 1 {
						<-over
					}
					return []byte("secret"), nil
				}
				r := eventcenter.New(config)
				ctx, w := t.Context(), reporttest.NewWorld()
				go r.Run(ctx) // the error at the end is that of the hung disk
				time.Sleep(5 * time.Minute)
				for i := range 3 {
					began := time.Now()
					r.Update(w.Run("filesystem-readonly", nil, fmt.Sprint("Disk", i)))
					synctest.Wait()
					time.Sleep(2 * time.Second)
					if !slices.Contains(c.lines(event.FaultRaised, event.FaultUpdated), fmt.Sprint("Disk", i)) {
						t.Fatalf("%d: not received after %s: %v", i, time.Since(began), c.lines())
					}
					time.Sleep(10 * time.Minute)
				}
				close(over)
			})
			c.check(t)
		})
	}
}

// An unreadable backlog does not block new events, and is sent when the disk is back.
func TestBacklogOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		store := reporttest.NewStore()
		config.Store = store
		receiver.Fail(errors.New("connection refused"))
		stop := reporttest.Start(t, eventcenter.New(config))
		time.Sleep(time.Minute)
		stop()
		receiver.Mend()
		over := make(chan struct{})
		config.Store = disk{store, func() error { <-over; return nil }}
		r, w := eventcenter.New(config), reporttest.NewWorld()
		stop = reporttest.Start(t, r)
		for i := range 5 {
			r.Update(w.Run("a", nil, fmt.Sprint("Reason", i)))
			time.Sleep(2 * time.Second)
			if lines := c.lines(event.FaultRaised, event.FaultUpdated); len(lines) != i+1 {
				t.Errorf("%d: received %v", i, lines)
			}
		}
		close(over)
		time.Sleep(10 * time.Minute)
		stop()
		c.check(t)
		streams := map[string]bool{}
		for _, e := range c.received() {
			if e.Type == event.AgentStarted {
				streams[e.Stream] = true
			}
		}
		if len(streams) != 2 {
			t.Errorf("%d starts arrived, want 2", len(streams))
		}
	})
}
