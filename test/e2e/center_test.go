package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/test/harness"
)

// TestCenterAway: a disk breaks, is mended, and breaks again while there is no event center. A follower of the center then
// reads each change once, in the order of the node, and none that the center had to infer.
func TestCenterAway(t *testing.T) {
	ofTheProcess(t, "test/daemonset (TestEventCenter) has its chart, and a pod sends the same")
	l := openLab(t)
	c := newCenter(t)
	c.start(t)
	a := install(t, l, harness.Overrides{"report": map[string]any{"eventCenter": map[string]any{
		"endpoints": []string{c.url}, "cluster": "lab", "tokenFile": filepath.Join(c.dir, "token")}}})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	disk := newDisk(t, a)
	turn := func(status string) {
		t.Helper()
		var err error
		if status == "True" {
			err = disk.Fail()
		} else if err = disk.Unmount(); err == nil {
			err = disk.MountAgain(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		awaitCondition(t, a, status)
	}
	turn("True")
	c.awaitChanges(t, disk.Mount, "raised")
	c.stop(t)
	began := time.Now()
	for _, status := range []string{"False", "True", "False", "True"} {
		turn(status)
	}
	if *long {
		wait(t, 10*time.Minute-time.Since(began))
	}
	c.start(t)
	c.awaitChanges(t, disk.Mount, "raised", "cleared", "raised", "cleared", "raised")
	turn("False")
	c.awaitChanges(t, disk.Mount, "raised", "cleared", "raised", "cleared", "raised", "cleared")
	c.stop(t)
}

// center is a real event center on this machine.
type center struct {
	dir, binary, url string
	process          *exec.Cmd
}

func newCenter(t *testing.T) *center {
	t.Helper()
	c := &center{dir: filepath.Join(t.TempDir(), "center"), binary: filepath.Join(builds, "eventcenter"),
		url: "http://127.0.0.1:10691/v1/events"}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", c.binary, "github.com/nodeagent/nodeagent/cmd/eventcenter")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

func (c *center) start(t *testing.T) {
	t.Helper()
	// The test's context ends before its clean-ups.
	ctx := context.WithoutCancel(t.Context())
	c.process = exec.CommandContext(ctx, c.binary, "serve", "--dir", c.dir, "--listen", "127.0.0.1:10691")
	c.process.Stdout, c.process.Stderr = os.Stderr, os.Stderr
	if err := c.process.Start(); err != nil {
		t.Fatal(err)
	}
	process := c.process.Process
	t.Cleanup(func() { _ = process.Kill() })
}

func (c *center) stop(t *testing.T) {
	t.Helper()
	if err := c.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.process.Wait(); err != nil {
		t.Error(err)
	}
}

// awaitChanges waits until the center has these changes of the faults of a disk, in this order.
func (c *center) awaitChanges(t *testing.T, mount string, want ...string) {
	t.Helper()
	var got []string
	err := harness.WaitFor(t.Context(), fmt.Sprint("the changes ", want), func() (err error) {
		if got, err = c.changes(t.Context(), mount); err == nil && len(got) < len(want) {
			err = fmt.Errorf("so far %v", got)
		}
		return err
	})
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
}

// changes reads all events about a disk, as a follower does: "raised", or "inferred cleared" if the center made it.
func (c *center) changes(ctx context.Context, mount string) (changes []string, err error) {
	token, err := os.ReadFile(filepath.Join(c.dir, "token"))
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?after=0&limit=1000", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Events []struct {
			Event struct {
				Type     string
				Inferred any
				Data     struct{ Subject struct{ Name string } }
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", response.Status, err)
	}
	for _, e := range answer.Events {
		change, isFault := strings.CutPrefix(e.Event.Type, "io.github.nodeagent.fault.")
		if !isFault || e.Event.Data.Subject.Name != mount {
			continue
		}
		if change = strings.TrimSuffix(change, ".v1"); e.Event.Inferred != nil {
			change = "inferred " + change
		}
		if change != "updated" {
			changes = append(changes, change)
		}
	}
	return changes, nil
}
