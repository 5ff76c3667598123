package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// silent is a component of the node that is away or takes questions and answers none, and what a person must then read.
type silent struct {
	component string
	away      func(*testing.T, *lab.Lab)
	back      func(*testing.T, *lab.Lab)
	says      string        // of it, somewhere on the screen of a look
	limit     time.Duration // of status and check
}

func signal(component string, sig syscall.Signal) func(*testing.T, *lab.Lab) {
	return func(t *testing.T, l *lab.Lab) {
		t.Helper()
		if err := l.Signal(component, sig); err != nil {
			t.Error(err)
		}
	}
}

// The bounds: nothing that status says is asked anew, and a look waits for what does not answer for 15 s at most.
const (
	statusLimit = 2 * time.Second
	lookLimit   = 15*time.Second + 3*time.Second
)

func silences() []silent {
	return []silent{
		{
			component: "kube-apiserver", says: "apiserver", limit: lookLimit,
			away: func(t *testing.T, l *lab.Lab) {
				if err := l.Stop(t.Context(), "kube-apiserver"); err != nil {
					t.Error(err)
				}
			},
			back: func(t *testing.T, l *lab.Lab) {
				if err := l.Start(t.Context(), "kube-apiserver"); err != nil {
					t.Error(err)
				}
			},
		},
		{component: "kubelet", says: "KubeletStopped", limit: lookLimit, away: signal("kubelet", syscall.SIGSTOP),
			back: signal("kubelet", syscall.SIGCONT)},
		{component: "containerd", says: "RuntimeStopped", limit: lookLimit, away: signal("containerd", syscall.SIGSTOP),
			back: signal("containerd", syscall.SIGCONT)},
	}
}

// TestBadDay: while a component does not answer, status and check are there in bounded time, name it, and end with a
// code that is not "fine"; the daemon goes on and is well again afterwards.
func TestBadDay(t *testing.T) {
	ofTheProcess(t, "it measures the process and its commands; the doors are tried by TestFaultsOfTheNode")
	l := openLab(t)
	a := install(t, l, nil)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, before := a.PID(), memory(t, a)
	for _, s := range silences() {
		t.Run(s.component, func(t *testing.T) {
			s.away(t, l)
			back := false
			defer func() {
				if !back {
					s.back(t, l)
				}
			}()
			for _, args := range [][]string{{"check"}, {"status"}} {
				answer, err := a.CLI(t.Context(), args...)
				if err != nil {
					t.Fatal(err)
				}
				limit := s.limit
				if args[0] == "status" {
					limit = statusLimit
				}
				if answer.Wall > limit {
					t.Errorf("%s took %s, more than %s", args[0], answer.Wall, limit)
				}
				if args[0] == "check" && (answer.Code == 0 || !strings.Contains(answer.Stdout, s.says)) {
					t.Errorf("check: code %d, %q is not said:\n%s", answer.Code, s.says, answer.Stdout)
				}
				t.Logf("%s: %s, code %d", args[0], answer.Wall.Round(time.Millisecond), answer.Code)
			}
			s.back(t, l)
			back = true
			err := harness.WaitFor(t.Context(), time.Minute, "the node to be well again", func() error {
				return l.Healthy(t.Context())
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if s, err := a.Status(t.Context()); err != nil || s.PID != pid {
		t.Fatalf("another daemon answers than before (%d), or none: %d, %v\n%s", pid, s.PID, err, a.LogTail())
	}
	if after := memory(t, a); after > before+20<<10 {
		t.Errorf("the daemon had %d KiB and has %d KiB", before, after)
	}
}

// memory is what the daemon itself holds, in KiB: see RssAnon in proc_pid_status(5).
func memory(t *testing.T, a *harness.Agent) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
