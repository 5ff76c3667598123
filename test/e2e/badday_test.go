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

// silent is a stopped component of the node, or one that accepts requests and does not answer, and the output that a
// person must then see.
type silent struct {
	component string
	stop      func(*testing.T, *lab.Lab)
	resume    func(*testing.T, *lab.Lab)
	want      string        // somewhere in the output of a check
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

// The limits: status makes no new observation, and check waits at most 15 s for a component that does not answer.
const (
	statusLimit = time.Minute
	checkLimit  = 2 * time.Minute
)

func silences() []silent {
	return []silent{
		{
			component: "kube-apiserver", want: "apiserver", limit: checkLimit,
			stop: func(t *testing.T, l *lab.Lab) {
				if err := l.Stop(t.Context(), "kube-apiserver"); err != nil {
					t.Error(err)
				}
			},
			resume: func(t *testing.T, l *lab.Lab) {
				if err := l.Start(t.Context(), "kube-apiserver"); err != nil {
					t.Error(err)
				}
			},
		},
		{component: "kubelet", want: "KubeletStopped", limit: checkLimit, stop: signal("kubelet", syscall.SIGSTOP),
			resume: signal("kubelet", syscall.SIGCONT)},
		{component: "containerd", want: "RuntimeStopped", limit: checkLimit,
			stop:   signal("containerd", syscall.SIGSTOP),
			resume: signal("containerd", syscall.SIGCONT)},
	}
}

// TestBadDay: while a component does not answer, status and check end in bounded time, name it, and exit with a code
// other than 0; the daemon keeps running and recovers afterwards.
func TestBadDay(t *testing.T) {
	ofTheProcess(t, "it measures the process and its commands; the clients are tested by TestFaultsOfTheNode")
	l := openLab(t)
	a := install(t, l, nil)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, before := a.PID(), memory(t, a)
	for _, s := range silences() {
		t.Run(s.component, func(t *testing.T) {
			s.stop(t, l)
			back := false
			defer func() {
				if !back {
					s.resume(t, l)
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
				if args[0] == "check" && (answer.Code == 0 || !strings.Contains(answer.Stdout, s.want)) {
					t.Errorf("check: code %d, %q is not in it:\n%s", answer.Code, s.want, answer.Stdout)
				}
				t.Logf("%s: %s, code %d", args[0], answer.Wall.Round(time.Millisecond), answer.Code)
			}
			s.resume(t, l)
			back = true
			err := harness.WaitFor(t.Context(), "the node to be healthy again", func() error {
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

// memory is the daemon's own memory, in KiB: see RssAnon in proc_pid_status(5).
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
