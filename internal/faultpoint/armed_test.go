//go:build faultpoints

package faultpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[0] == "victim" {
		if err := Arm(os.Args[1]); err != nil {
			os.Exit(3)
		}
		for _, name := range []string{"intent: mount", "done: mount", "intent: cgroup", "done: cgroup"} {
			Hit(name)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestHit(t *testing.T) {
	for name, test := range map[string]struct {
		plan string
		hits int // logged hits; all 4 if it survives
	}{
		"never":        {"at 9\n", 4},
		"at the third": {"at 3\n", 3},
		"by name":      {"name done\nat 2\n", 2},
		"only logged":  {"", 4},
	} {
		t.Run(name, func(t *testing.T) {
			log, plan := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "plan")
			if err := os.WriteFile(plan, []byte(test.plan+"log "+log+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			victim := exec.Cmd{Path: "/proc/self/exe", Args: []string{"victim", plan}}
			err := victim.Run()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if lived := test.hits == 4; lived == killed || lived && err != nil {
				t.Errorf("killed %v: %v", killed, err)
			}
			data, _ := os.ReadFile(log)
			if got := strings.Count(string(data), "\n"); got != test.hits {
				t.Errorf("%d hits: %s", got, data)
			}
		})
	}
}
