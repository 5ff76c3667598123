package kubelethealth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestEvaluateKubelet(t *testing.T) {
	refused := &url.Error{Op: "Get", Err: syscall.ECONNREFUSED}
	timeout := &url.Error{Op: "Get", Err: context.DeadlineExceeded}
	gone := fmt.Errorf("find kubelet: %w", fs.ErrNotExist)
	tests := []struct {
		name    string
		seen    observation
		want    []string
		wantErr bool
	}{
		{name: "ok", seen: observation{Body: "ok", Latency: time.Millisecond}},
		{name: "ok inside another process", seen: observation{Body: "ok", ProcessErr: gone}},
		{name: "rather slow", seen: observation{Body: "ok", Latency: 1500 * time.Millisecond},
			want: []string{"kubelet/kubelet=KubeletSlow warning marginal"}},
		{name: "slow", seen: observation{Body: "ok", Latency: 2 * time.Second},
			want: []string{"kubelet/kubelet=KubeletSlow warning"}},
		{name: "dead", seen: observation{HealthzErr: refused, ProcessErr: gone},
			want: []string{"kubelet/kubelet=KubeletNotRunning"}},
		{name: "zombie", seen: observation{HealthzErr: refused, Threads: checkkit.ThreadStates{Main: 'Z'}},
			want: []string{"kubelet/kubelet=KubeletNotRunning"}},
		{name: "running, nobody listens", seen: observation{HealthzErr: refused},
			want: []string{"kubelet/kubelet=KubeletNotListening"}},
		{name: "nobody listens, process unknown", seen: observation{HealthzErr: refused,
			ProcessErr: errors.New("EPERM")}, want: []string{"kubelet/kubelet=KubeletNotListening"}},
		{name: "stopped", seen: observation{HealthzErr: timeout, Threads: checkkit.ThreadStates{Main: 'T'}},
			want: []string{"kubelet/kubelet=KubeletStopped"}},
		{name: "traced", seen: observation{HealthzErr: timeout, Threads: checkkit.ThreadStates{Main: 't'}},
			want: []string{"kubelet/kubelet=KubeletStopped"}},
		{name: "hung in the kernel", seen: observation{HealthzErr: timeout, Threads: checkkit.ThreadStates{Main: 'S',
			Blocked: 3}}, want: []string{"kubelet/kubelet=KubeletHung"}},
		{name: "silent", seen: observation{HealthzErr: timeout, Threads: checkkit.ThreadStates{Main: 'S'}},
			want: []string{"kubelet/kubelet=KubeletNotAnswering"}},
		{name: "says 500", seen: observation{HealthzErr: errors.New("status 500"), Body: "[-]syncloop failed"},
			want: []string{"kubelet/kubelet=KubeletHealthzFailed"}},
		{name: "somebody else answers", seen: observation{Body: "ok", Impostor: true},
			want: []string{"kubelet/kubelet=KubeletPortTaken warning"}},
		{name: "a pod answers 500", seen: observation{HealthzErr: errors.New("status 500"), Intercepted: "hostPort"},
			wantErr: true},
		{name: "a pod refuses", seen: observation{HealthzErr: refused, Intercepted: "hostPort"}, wantErr: true},
		{name: "a pod is silent", seen: observation{HealthzErr: timeout, Threads: checkkit.ThreadStates{Main: 'S'},
			Intercepted: "hostPort"}, wantErr: true},
		{name: "a pod is silent, and kubelet is stopped", seen: observation{HealthzErr: timeout,
			Threads: checkkit.ThreadStates{Main: 'T'}, Intercepted: "hostPort"},
			want: []string{"kubelet/kubelet=KubeletStopped"}},
		{name: "both unknown", seen: observation{HealthzErr: &url.Error{Op: "Get", Err: errors.New("EOF")},
			ProcessErr: errors.New("EPERM")}, wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, err := evaluateKubelet(tt.seen, DefaultSettings())
			if diff := cmp.Diff(tt.want, checktest.Reasons(found)); diff != "" || (err != nil) != tt.wantErr {
				t.Errorf("error %v, findings (-want +got):\n%s", err, diff)
			}
			for _, f := range found {
				f.Check = "kubelet-health"
				if err := f.Problem(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// kubeletHost is a host on which kubelet is a process and a server of the test.
func kubeletHost(t *testing.T, address string, process func() (host.Process, error)) *host.Host {
	t.Helper()
	h := &host.Host{NodeName: "node-1", Clock: host.Now}
	h.Paths.KubeletHealthz = "http://" + address + "/healthz"
	h.Kubelet.Process = process
	h.Kubelet.Healthz = func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Paths.KubeletHealthz, nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", response.StatusCode)
		}
		return string(body), err
	}
	return h
}

// self is the test's own process.
func self() (host.Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (host.Process, error) {
	stat, err := (&host.Host{}).ProcStat(pid)
	return host.Process{PID: pid, StartTime: stat.StartTime, Comm: stat.Comm}, err
}

// stopped starts a process and stops it with SIGSTOP.
func stopped(t *testing.T) int {
	t.Helper()
	sleep := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	hosttest.Stop(t, sleep.Process.Pid)
	return sleep.Process.Pid
}

func TestKubeletHealthAgainstProcesses(t *testing.T) {
	settings := Settings{Timeout: time.Minute, SlowAfter: time.Minute, SlowBefore: time.Minute}
	observe := func(t *testing.T, h *host.Host, settings Settings) []string {
		t.Helper()
		found, err := New(settings).Run(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		return checktest.Reasons(found)
	}
	serve := func(t *testing.T, code int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	mute := func(t *testing.T) string { // accepts in the kernel's backlog and never answers
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l.Addr().String()
	}
	closed := func(t *testing.T) string { return loopback.Free(t) }
	none := func() (host.Process, error) { return host.Process{}, fs.ErrNotExist }

	tests := []struct {
		name    string
		address func(t *testing.T) string
		process func(t *testing.T) func() (host.Process, error)
		want    []string
	}{
		{"healthy", func(t *testing.T) string {
			return serve(t, 200, "ok")
		}, func(*testing.T) func() (host.Process, error) { return self }, nil},
		{"unwell", func(t *testing.T) string {
			return serve(t, 500, "no")
		}, func(*testing.T) func() (host.Process, error) {
			return self
		}, []string{"kubelet/kubelet=KubeletHealthzFailed"}},
		{"hung", mute, func(*testing.T) func() (host.Process, error) {
			return self
		}, []string{"kubelet/kubelet=KubeletNotAnswering"}},
		{"stopped", mute, func(t *testing.T) func() (host.Process, error) {
			pid := stopped(t)
			return func() (host.Process, error) { return processOf(pid) }
		}, []string{"kubelet/kubelet=KubeletStopped"}},
		{"dead", closed, func(*testing.T) func() (host.Process, error) {
			return none
		}, []string{"kubelet/kubelet=KubeletNotRunning"}},
		{"port taken", func(t *testing.T) string {
			return serve(t, 200, "ok")
		}, func(t *testing.T) func() (host.Process, error) {
			pid := stopped(t) // it runs without the port, which the test holds
			return func() (host.Process, error) { return processOf(pid) }
		}, []string{"kubelet/kubelet=KubeletPortTaken warning"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "port taken" {
				need.Root(t, "reads another process's file descriptors")
			}
			h := kubeletHost(t, tt.address(t), tt.process(t))
			settings := settings
			if tt.name == "hung" || tt.name == "stopped" {
				settings.Timeout = 300 * time.Millisecond
			}
			if diff := cmp.Diff(tt.want, observe(t, h, settings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no kubelet was ever here", func(t *testing.T) {
		h := kubeletHost(t, closed(t), none)
		h.NodeName, h.Paths.KubeletRoot = "", t.TempDir()
		_, err := New(settings).Run(t.Context(), h)
		if _, ok := errors.AsType[*finding.NotApplicableError](err); !ok {
			t.Errorf("got %v, want not applicable", err)
		}
	})
}

// A recorded kubelet is healthy, and holds its healthz port.
func TestRecordedKubelet(t *testing.T) {
	files := checktest.Recorded(t, "testdata/kubelet-health/ok-recorded.txtar")
	found, err := evaluateKubelet(observation{Body: string(files["healthz"]), Latency: time.Millisecond},
		DefaultSettings())
	if found != nil || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}
