package eventcenter_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/need"
)

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
			c := &center{}
			server := httptest.NewServer(c)
			defer server.Close()
			r := eventcenter.New(realConfig(openStore(t, dir), server.URL))
			runReal(t, r)
			thaw := func() { _ = exec.Command("fsfreeze", "--unfreeze", dir).Run() } // the test may be over
			t.Cleanup(thaw)
			eventually(t, "nothing is sent", func() bool { return len(c.received()) > 1 })
			fail(disk, dir)
			c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			})
			w := reporttest.NewWorld()
			r.Update(w.Run("a", nil, "One"))
			time.Sleep(2500 * time.Millisecond) // the backlog is being written
			c.answers(nil)
			r.Update(w.Run("a", nil, "Two"))
			eventually(t, "what is new does not arrive", func() bool {
				return slices.Contains(c.lines(event.FaultUpdated), "Two")
			})
			thaw()
			c.check(t)
		})
	}
}
