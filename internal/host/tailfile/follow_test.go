package tailfile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// here returns the real machine, as this process sees it.
func here() *host.Host { return &host.Host{Paths: host.Paths{InitPID: os.Getpid()}, Clock: host.Now} }

func appendTo(t *testing.T, name, text string) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// tail follows a file in a synctest bubble, in which time passes at once.
type tail struct {
	name     string
	lines    []string
	position tailfile.FilePosition
	caught   int
	stop     func() error
}

func startTail(t *testing.T, name string, from tailfile.FilePosition) *tail {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	f := &tail{name: name, stop: func() error { cancel(); return <-ended }}
	go func() {
		ended <- tailfile.FollowFile(ctx, here(), name, from, func(line []byte, at tailfile.FilePosition) {
			f.lines, f.position = append(f.lines, string(line)), at
		}, func() { f.caught++ })
	}()
	synctest.Wait()
	return f
}

// wants waits until the file was checked again.
func (f *tail) wants(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	if got := strings.Join(f.lines, "|"); got != strings.Join(want, "|") {
		t.Errorf("lines %s, want %s", got, strings.Join(want, "|"))
	}
	f.lines = nil
}

func TestFollowFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	synctest.Test(t, func(t *testing.T) {
		appendTo(t, name, "one\ntwo\nthr")
		f := startTail(t, name, tailfile.FilePosition{})
		f.wants(t, "one", "two")
		appendTo(t, name, "ee\n\n")
		f.wants(t, "three", "")
		appendTo(t, name, strings.Repeat("x", 200_000)+"\nafter\n")
		f.wants(t, strings.Repeat("x", 64<<10), "after")
		middle := f.position

		if err := os.Rename(name, name+".1"); err != nil { // rotated, and then written to under both names
			t.Fatal(err)
		}
		appendTo(t, name+".1", "last of the old\n")
		f.wants(t, "last of the old")
		appendTo(t, name+".1", "really the last\n")
		appendTo(t, name, "first of the new\n")
		f.wants(t, "really the last", "first of the new")

		if err := os.Truncate(name, 0); err != nil { // as copytruncate does
			t.Fatal(err)
		}
		appendTo(t, name, "again\n")
		f.wants(t, "again")
		end := f.position
		if err := f.stop(); err != nil || f.caught != 1 {
			t.Errorf("caught up %d times, %v", f.caught, err)
		}

		appendTo(t, name, "while away\n")
		f = startTail(t, name, end)
		f.wants(t, "while away")
		if err := f.stop(); err != nil {
			t.Error(err)
		}
		f = startTail(t, name, middle) // a position in another file
		f.wants(t, "again", "while away")
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Lines far before the end are not read.
func TestFollowFileThatIsLarge(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	for i := range 20 {
		appendTo(t, name, strings.Repeat(fmt.Sprintf("%02d %s\n", i, strings.Repeat("x", 1020)), 1024))
	}
	synctest.Test(t, func(t *testing.T) {
		f := startTail(t, name, tailfile.FilePosition{})
		if n := len(f.lines); n < 16<<10-1 || n > 16<<10 || !strings.HasPrefix(f.lines[0], "04 ") &&
			!strings.HasPrefix(f.lines[0], "03 ") {
			t.Errorf("%d lines, the first is %q", n, f.lines[0][:4])
		}
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestFollowFileRefuses(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		filepath.Join(dir, "absent"): "no such file", pipe: "not a regular file", "/dev/null": "not a regular file",
		dir: "not a regular file",
	} {
		err := tailfile.FollowFile(t.Context(), here(), name, tailfile.FilePosition{},
			func([]byte, tailfile.FilePosition) {},
			func() { t.Error("caught up") })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFollowFileOnAHungMount(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	err := tailfile.FollowFile(t.Context(), here(), filepath.Join(dir, "log"), tailfile.FilePosition{},
		func([]byte, tailfile.FilePosition) {}, func() {})
	if err == nil || !strings.Contains(err.Error(), "fuse.hang mount") {
		t.Error(err)
	}
}
