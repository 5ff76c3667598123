package eventcenter_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/segment"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// filesIn returns real files.
func filesIn(dir string) eventcenter.Files {
	d := segment.Dir{Path: dir, Max: 2 << 20}
	return eventcenter.Files{Scan: d.Scan, Append: d.Append, ReadAt: d.ReadAt, Remove: d.Remove}
}

// hanging returns files that hang until the test ends.
func hanging(t *testing.T) eventcenter.Files {
	over := make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(over) }) })
	wait := func() error { <-over; return errors.New("the disk is gone") }
	return eventcenter.Files{
		Scan:   func(func(string, []byte, error)) error { return wait() },
		Append: func(string, []byte) error { return wait() },
		ReadAt: func(string, int64, int) ([]byte, error) { return nil, wait() },
		Remove: func(string) error { return wait() },
	}
}

// broken returns files that fail.
func broken() eventcenter.Files {
	err := errors.New("read-only file system")
	return eventcenter.Files{
		Scan:   func(func(string, []byte, error)) error { return err },
		Append: func(string, []byte) error { return err },
		ReadAt: func(string, int64, int) ([]byte, error) { return nil, err },
		Remove: func(string) error { return err },
	}
}

// The fault that matters most is the disk's own: it is sent whatever that disk does, also before anything was read.
func TestFatalLeavesWithoutTheDisk(t *testing.T) {
	for name, files := range map[string]func(*testing.T) eventcenter.Files{
		"hung": hanging, "read-only": func(*testing.T) eventcenter.Files { return broken() },
		"none": func(*testing.T) eventcenter.Files { return eventcenter.Files{} },
	} {
		t.Run(name, func(t *testing.T) {
			c := &center{}
			synctest.Test(t, func(t *testing.T) {
				config, _ := config(c)
				over := make(chan struct{})
				config.Files, config.Settings.TokenFile = files(t), "/on/the/same/disk"
				reads := 0
				config.ReadFile = func(string) ([]byte, error) {
					if reads++; reads > 1 {
						<-over
					}
					return []byte("secret"), nil
				}
				r := eventcenter.New(config)
				ctx, w := t.Context(), reporttest.NewWorld()
				go r.Run(ctx) // that a disk hangs is an error of its end
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

// A backlog that can no longer be read does not hold up what is new, and is sent when the disk is back.
func TestBacklogOnHungDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := &center{}
		config, receiver := config(c)
		config.Files = filesIn(dir)
		receiver.Fail(errors.New("connection refused"))
		stop := reporttest.Start(t, eventcenter.New(config))
		time.Sleep(time.Minute)
		stop()
		receiver.Mend()
		read, over := config.Files.ReadAt, make(chan struct{})
		config.Files.ReadAt = func(name string, offset int64, size int) ([]byte, error) {
			<-over
			return read(name, offset, size)
		}
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
