package program_test

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/program"
)

// The start of a program on a disk that hangs hangs alone: with one processor for Go code, the rest of the process runs on.
func TestStartFromHungDisk(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for name, cmd := range map[string]*exec.Cmd{
		"program": {Path: filepath.Join(dir, "program")},
		"folder":  {Path: "/bin/true", Dir: filepath.Join(dir, "folder")},
	} {
		child := &program.Child{Cmd: cmd}
		child.Start()
		select {
		case <-child.Done():
			t.Errorf("%s: it has ended: %v", name, child.Err())
		case <-time.After(time.Second): // this timer fires only if the process runs
		}
		child.Kill(0)
	}
}
