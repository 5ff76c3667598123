package eventcenter_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/eventtest"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/need"
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

// The most important fault is the disk's own: it is sent in every state of that disk, even before the store was read.
func TestFatalLeavesWithoutTheDisk(t *testing.T) {
	for name, store := range map[string]func(over chan struct{}) report.Store{
		"hung": func(over chan struct{}) report.Store {
			return disk{reporttest.NewStore(), func() error { <-over; return errors.New("the disk is gone") }}
		},
		"read-only": func(chan struct{}) report.Store {
			return disk{reporttest.NewStore(), func() error { return errors.New("read-only file system") }}
		},
		"none": func(chan struct{}) report.Store { return nil },
	} {
		subtest(t, name, func(t *testing.T, k *kit) {
			over := make(chan struct{})
			k.config.Store, k.config.Settings.TokenFile = store(over), "/on/the/same/disk"
			reads := 0
			k.config.ReadFile = func(string) ([]byte, error) {
				if reads++; reads > 1 {
					<-over
				}
				return []byte("secret"), nil
			}
			k.r = eventcenter.New(k.config)
			go k.r.Run(t.Context()) // the error at the end is that of the hung disk
			time.Sleep(5 * time.Minute)
			for i := range 3 {
				began := time.Now()
				k.find(fmt.Sprint("Disk", i))
				synctest.Wait()
				time.Sleep(2 * time.Second)
				if !slices.Contains(k.c.lines(event.FaultRaised, event.FaultUpdated), fmt.Sprint("Disk", i)) {
					t.Fatalf("%d: not received after %s: %v", i, time.Since(began), k.c.lines())
				}
				time.Sleep(10 * time.Minute)
			}
			close(over)
			k.check()
		})
	}
}

// An unreadable backlog does not block new events, and is sent when the disk is back.
func TestBacklogOnHungDisk(t *testing.T) {
	bubble(t, func(t *testing.T, k *kit) {
		k.away()
		k.start()
		k.end(time.Minute)
		k.receiver.Mend()
		over := make(chan struct{})
		k.config.Store = disk{k.store, func() error { <-over; return nil }}
		k.start()
		for i := range 5 {
			k.find(fmt.Sprint("Reason", i))
			time.Sleep(2 * time.Second)
			if lines := k.c.lines(event.FaultRaised, event.FaultUpdated); len(lines) != i+1 {
				t.Errorf("%d: received %v", i, lines)
			}
		}
		close(over)
		k.end(10 * time.Minute)
		streams := map[string]bool{}
		for _, e := range k.c.received() {
			if e.Type == event.AgentStarted {
				streams[e.Stream] = true
			}
		}
		if len(streams) != 2 {
			t.Errorf("%d starts arrived, want 2", len(streams))
		}
	})
}

// New events also leave on a real filesystem that hangs, is read-only or has shut down.
func TestRealDisk(t *testing.T) {
	need.Root(t, "mounts and freezes a filesystem")
	need.Program(t, "fsfreeze")
	for name, fail := range map[string]func(disk *hosttest.LoopFS, dir string){
		"hung": func(_ *hosttest.LoopFS, dir string) {
			if out, err := exec.CommandContext(t.Context(), "fsfreeze", "--freeze", dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
		"read-only": func(disk *hosttest.LoopFS, dir string) { disk.Remount(dir, "abort") },
		"shut down": func(disk *hosttest.LoopFS, dir string) { disk.Shutdown(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			disk, dir := hosttest.NewLoopFS(t, "ext4"), filepath.Join(t.TempDir(), "state")
			disk.Mount(dir, "rw")
			c := newCenter()
			server := httptest.NewServer(c)
			defer server.Close()
			r := eventcenter.New(realConfig(openStore(t, dir), server.URL))
			runReal(t, r)
			thaw := func() { _ = exec.Command("fsfreeze", "--unfreeze", dir).Run() } // the test may be over
			t.Cleanup(thaw)
			eventually(t, "nothing is sent", func() bool { return len(c.received()) > 1 })
			fail(disk, dir)
			c.Answers(eventtest.Status(http.StatusServiceUnavailable))
			w := reporttest.NewWorld()
			r.Update(w.Run("a", nil, "One"))
			time.Sleep(2500 * time.Millisecond) // the backlog is being written
			c.Answers(nil)
			r.Update(w.Run("a", nil, "Two"))
			eventually(t, "what is new does not arrive", func() bool { return slices.Contains(c.lines(), "Two") })
			thaw()
			c.check(t)
		})
	}
}
