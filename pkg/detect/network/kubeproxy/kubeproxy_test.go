package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// standIn is a process called kube-proxy with a real health server, which gives the answers in a file.
const standIn = "NODEAGENT_TEST_KUBE_PROXY"

// TestKubeProxyStandIn is that process. It writes the answers of older versions of
// k8s.io/kubernetes/pkg/proxy/healthcheck; see TestKubeProxyRecorded for newer ones.
func TestKubeProxyStandIn(t *testing.T) {
	modes := os.Getenv(standIn)
	need.Flag(t, modes != "", "a child of TestKubeProxyForReal")
	now := time.Now()
	answer := func(w http.ResponseWriter, healthy, eligible bool, path string) {
		last := now
		if !healthy {
			last = now.Add(-90 * time.Second)
		}
		if !healthy || path == "/healthz" && !eligible {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, `{"lastUpdated": %q,"currentTime": %q`, last, now)
		if path == "/healthz" {
			fmt.Fprintf(w, `, "nodeEligible": %v`, eligible)
		}
		fmt.Fprint(w, "}")
	}
	server := http.Server{ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mode, err := os.ReadFile(modes)
			if err != nil {
				t.Error(err)
			}
			switch text := string(mode); {
			case strings.HasPrefix(text, "old") && r.URL.Path == "/livez":
				http.NotFound(w, r)
			case text == "error":
				http.Error(w, "no", http.StatusInternalServerError)
			default:
				answer(w, !strings.Contains(text, "stale"), !strings.Contains(text, "draining"), r.URL.Path)
			}
		})}
	server.Addr = os.Args[len(os.Args)-1]
	if err := server.ListenAndServe(); err != nil {
		t.Fatal(err)
	}
}

// proxyWorld is the stand-in and the machine around it.
type proxyWorld struct {
	t     *testing.T
	modes string
	cmd   *exec.Cmd
	pods  []corev1.Pod
	up    time.Duration
}

func (w *proxyWorld) start(args ...string) {
	w.t.Helper()
	program := filepath.Join(filepath.Dir(w.modes), "kube-proxy")
	self, err := os.Readlink("/proc/self/exe")
	if err == nil {
		_ = os.Remove(program)
		err = os.Symlink(self, program)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.cmd = exec.CommandContext(w.t.Context(), program, append([]string{"-test.run=^TestKubeProxyStandIn$", "--"},
		args...)...)
	w.cmd.Env = append(os.Environ(), standIn+"="+w.modes)
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.kill)
}

func (w *proxyWorld) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

func (w *proxyWorld) mode(text string) {
	w.t.Helper()
	if err := os.WriteFile(w.modes, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *proxyWorld) host() *host.Host {
	h := &host.Host{NodeName: "node-a", Paths: discover.DefaultPaths()}
	h.Paths.InitPID = os.Getpid()
	h.Clock = func() finding.Timestamp { return finding.Timestamp{SinceBoot: w.up} }
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return w.pods, nil }
	return h
}

func proxyPod() corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy-x7k2p"},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "kube-proxy"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "kube-proxy",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
		}},
	}
}

func TestKubeProxyForReal(t *testing.T) {
	if os.Getenv(standIn) != "" || !hosttest.OwnNetwork(t) {
		return
	}
	w := &proxyWorld{t: t, modes: filepath.Join(t.TempDir(), "mode"), up: time.Hour}
	h := w.host()
	check := New(Settings{Port: 10256, Timeout: 300 * time.Millisecond})
	expect := func(name, want string) {
		t.Helper()
		var wants []string
		if want != "" {
			wants = []string{"kube-proxy/kube-proxy=" + want}
		}
		found := checktest.AwaitFindings(t, check, h, wants)
		for _, f := range found {
			t.Log(name+":", f.Message)
		}
	}
	if _, err := check.Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("neither process nor pod: %v, want not applicable", err)
	}
	impostor := proxyPod()
	impostor.Namespace = "tenant"
	w.pods = []corev1.Pod{impostor}
	w.up += 10 * time.Minute
	if _, err := check.Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("a pod of a tenant that looks like it: %v, want not applicable", err)
	}
	w.pods = []corev1.Pod{proxyPod()}
	if _, err := check.Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("it is believed for a while: %v", err)
	}
	w.up += 5 * time.Minute
	expect("a pod without process", "KubeProxyNotRunning")
	w.mode("ok")
	w.start("127.0.0.1:10256")
	expect("cleared", "")
	for _, step := range [][2]string{
		{"stale", "KubeProxyNotSyncing"}, {"ok", ""}, {"draining", ""}, {"draining stale", "KubeProxyNotSyncing"},
		{"error", "KubeProxyNotAnswering"},
		{"old", ""}, {"old draining", ""}, {"old stale", "KubeProxyNotSyncing"}, {"ok", ""},
	} {
		w.mode(step[0])
		expect(step[0], step[1])
	}
	hosttest.Stop(t, w.cmd.Process.Pid)
	expect("stopped", "KubeProxyNotAnswering")
	w.hostPort(check, h)
	expect("the pod with the hostPort is gone", "KubeProxyNotAnswering")
	w.imitate(h, expect)
	if err := w.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	expect("goes on", "")
	w.kill()
	expect("killed", "KubeProxyNotRunning")

	// Bound to one address of the node only, by flag or otherwise.
	hosttest.Address(t, "lo", "192.0.2.7/32")
	w.start("192.0.2.7:10256")
	expect("on the node's address", "")
	w.kill()
	w.start("--healthz-bind-address=0.0.0.0:10299", "0.0.0.0:10299")
	expect("on another port", "")
	w.kill()
	w.start("127.0.0.1:10999")
	checktest.AwaitError(t, check, h, checktest.IsNotApplicable)
}

// TestKubeProxyRecorded: answers of kube-proxy's own health server.
func TestKubeProxyRecorded(t *testing.T) {
	wants := map[string][]string{"stale/livez/503": {"kube-proxy/kube-proxy=KubeProxyNotSyncing"},
		"stale/healthz/503": {"kube-proxy/kube-proxy=KubeProxyNotSyncing"}}
	for name, body := range checktest.Recorded(t, "testdata/kube-proxy/recorded.txtar") {
		part := strings.Split(name, "/")
		status, err := strconv.Atoi(part[2])
		seen := observation{url: "http://127.0.0.1:10256/" + part[1], status: status, body: string(body)}
		if err != nil || !seen.isProxy() {
			t.Errorf("%s: %v, or it is not the answer of a kube-proxy", name, err)
		}
		found := seen.evaluate()
		if diff := cmp.Diff(wants[name], checktest.Reasons(found)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if len(found) > 0 && !strings.Contains(found[0].Message, "has not updated the services for 6s") {
			t.Errorf("%s: message %q does not state the age", name, found[0].Message)
		}
	}
}

func TestHealthAddress(t *testing.T) {
	const (
		rest = " 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
		none = "00000000000000000000000000000000"
	)
	for text, want := range map[string]string{
		"0: 0100007F:2810 00000000:0000 0A":                             "127.0.0.1:10256 true",
		"0: 00000000:2810 00000000:0000 0A":                             "127.0.0.1:10256 true",
		"0: " + none + ":2810 " + none + ":0000 0A":                     "[::1]:10256 true",
		"0: 0000000000000000FFFF00000200000A:2810 " + none + ":0000 0A": "10.0.0.2:10256 true",
		"0: 0200000A:2810 0300000A:1234 01":                             "127.0.0.1:10256 false",
		"0: 0200000A:2811 00000000:0000 0A":                             "127.0.0.1:10256 false",
		"0: zz:2810 00000000:0000 0A":                                   "127.0.0.1:10256 false",
	} {
		root := t.TempDir()
		if err := errors.Join(os.MkdirAll(root+"/proc/7/net", 0o700),
			os.WriteFile(root+"/proc/7/net/tcp", []byte(text+rest), 0o600)); err != nil {
			t.Fatal(err)
		}
		check := kubeProxyCheck{settings: Settings{Port: 10256}}
		address, listens := check.address(&host.Host{Files: host.Files{Root: root}},
			observation{runs: true, process: host.Process{PID: 7}})
		if got := fmt.Sprint(address, " ", listens); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
