package daemonsethang

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// node has a pod of DaemonSet kube-system/agent, whose container is the recorded process.
type node struct {
	t        *testing.T
	host     *host.Host
	pod      corev1.Pod
	now      finding.Timestamp
	settings Settings
	check    detect.Check
}

func newNode(t *testing.T) *node {
	t.Helper()
	yes := true
	n := &node{t: t, now: hosttest.Now(), settings: Settings{DaemonSets: []Watched{{Name: "kube-system/agent"}}},
		pod: corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-x7k2p", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: &yes}}},
			Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "agent"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", Started: &yes,
				ContainerID: "containerd://" + strings.Repeat("c", 64),
				State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
		}}
	n.host = hosttest.Fixture(t, "testdata/daemonset-hang/recorded.txtar", func(h *host.Host) {
		h.Clock = func() finding.Timestamp { return n.now }
		h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return []corev1.Pod{n.pod}, nil }
	})
	return n
}

// wakes takes the process out of state D.
func (n *node) wakes() { n.replace("3695/task/3695/stat", ") D ", ") S ") }

// works makes it use a processor between two looks.
func (n *node) works() { n.replace("3695/task/3695/stat", " 106 0 0 0 0 0 ", " 106 0 0 0 7 0 ") }

// restarts replaces the process by another one.
func (n *node) restarts() {
	for _, file := range []string{"3695/stat", "3695/task/3695/stat"} {
		n.replace(file, " 5063143 ", " 6063143 ")
	}
}

func (n *node) replace(file, from, to string) {
	n.t.Helper()
	name := n.host.Files.Path("/proc/" + file)
	data, err := os.ReadFile(name)
	if err == nil && !strings.Contains(string(data), from) {
		err = fmt.Errorf("%s: no %q", file, from)
	}
	if err == nil {
		err = os.WriteFile(name, []byte(strings.Replace(string(data), from, to, 1)), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// look runs the check after a time, and returns its reason, "doubt: …", or "".
func (n *node) look(after time.Duration) string {
	n.t.Helper()
	if n.check.Run == nil {
		n.check = newCheck(n.settings, 100*time.Millisecond)
	}
	n.now.SinceBoot += after
	n.now.Wall = n.now.Wall.Add(after)
	found, err := n.check.Run(n.t.Context(), n.host)
	switch {
	case err != nil && len(found) > 0:
		n.t.Fatal(found, err)
	case err != nil:
		return "doubt: " + err.Error()
	case len(found) == 1 && found[0].Subject == finding.Subject{Kind: "daemonset", Name: "kube-system/agent"}:
		return found[0].Reason
	case len(found) > 0:
		n.t.Fatal(found)
	}
	return ""
}

// expect compares the results of looks a minute apart; each want is a part.
func (n *node) expect(wants ...string) {
	n.t.Helper()
	for i, want := range wants {
		if got := n.look(time.Minute); !strings.Contains(got, want) || want == "" && got != "" {
			n.t.Errorf("look %d: %q, want %q", i+1, got, want)
		}
	}
}

const doubt = "hangs if that lasts 5m0s"

// A thread that waits in the kernel, and uses no processor, hangs after 3 looks over 5 minutes; not before.
func TestHungInKernel(t *testing.T) {
	n := newNode(t)
	n.expect("", doubt, doubt, doubt, doubt, "DaemonSetPodHungInKernel", "DaemonSetPodHungInKernel")
	n.wakes()
	n.expect("", "")
}

// Two looks long enough apart are not enough: both may have hit a process that waits for its disk now and then.
func TestThreeLooks(t *testing.T) {
	n := newNode(t)
	n.expect("")
	if got := n.look(20 * time.Minute); !strings.Contains(got, doubt) {
		t.Errorf("%q", got)
	}
	if got := n.look(time.Second); got != "DaemonSetPodHungInKernel" {
		t.Errorf("%q", got)
	}
}

// Any evidence that it does not hang, or that it is another process, starts the count again.
func TestStreaksEnd(t *testing.T) {
	for name, change := range map[string]func(n *node){
		"it used a processor":          (*node).works,
		"another process":              (*node).restarts,
		"its startup is not over":      func(n *node) { n.pod.Status.ContainerStatuses[0].Started = new(bool) },
		"kubelet is about to start it": func(n *node) { n.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{} },
		"its pod ends":                 func(n *node) { n.pod.DeletionTimestamp = &metav1.Time{} },
		"its pod is another's":         func(n *node) { n.pod.OwnerReferences[0].Name = "other" },
		"its pod is of no DaemonSet":   func(n *node) { n.pod.OwnerReferences[0].Kind = "ReplicaSet" },
		"its pod is of no one":         func(n *node) { n.pod.OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.expect("", doubt, doubt, doubt, doubt)
			change(n)
			n.expect("")
		})
	}
}

// A failed look does not count as healthy, and does not end a streak.
func TestBroken(t *testing.T) {
	for name, test := range map[string]struct {
		change func(n *node)
		want   string
	}{
		"kubelet":   {func(n *node) { n.host.Kubelet.Pods = hosttest.Answer([]corev1.Pod(nil), errors.New("refused")) }, "refused"},
		"processes": {func(n *node) { n.replace("3695/task/3695/stat", "3695 (vf) D", "no process at all") }, "process state"},
		"cgroups": {func(n *node) {
			n.restarts() // so that the check searches for the process
			if err := os.WriteFile(n.host.Files.Path("/proc/3695/cgroup"), []byte("0::/"), 0o600); err != nil {
				n.t.Fatal(err)
			}
		}, "has no process"},
		"container": {func(n *node) { n.settings.DaemonSets[0].Container = "other"; n.check.Run = nil }, `no container "other"`},
		"several": {func(n *node) { n.pod.Spec.Containers = append(n.pod.Spec.Containers, corev1.Container{Name: "b"}) },
			"must name one"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.expect("", doubt)
			test.change(n)
			n.expect(test.want)
		})
	}
}

// A socket answers if the program sends or closes anything. The kernel accepts connections for one that hangs.
func TestHealthSocket(t *testing.T) {
	dir := hosttest.ShortDir(t)
	listen := func(name string, serve func(c net.Conn)) string {
		t.Helper()
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if serve == nil {
			return l.Addr().String()
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serve(c)
			}
		}()
		return l.Addr().String()
	}
	answers := listen("a", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.0 500 no\r\n")); _ = c.Close() })
	closes := listen("c", func(c net.Conn) { _ = c.Close() })
	hangs := listen("h", nil)
	for name, test := range map[string]struct {
		socket string
		wants  []string
	}{
		"it answers":  {answers, []string{"", "", "", "", "", "", ""}},
		"it closes":   {closes, []string{"", "", "", "", "", "", ""}},
		"it hangs":    {hangs, []string{doubt, doubt, doubt, doubt, doubt, "DaemonSetPodNotAnswering"}},
		"nobody":      {filepath.Join(dir, "none"), []string{doubt, doubt, doubt, doubt, doubt, "DaemonSetPodNotAnswering"}},
		"not judged ": {"", []string{"", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.wakes()
			n.settings.DaemonSets[0].Socket = test.socket
			n.expect(test.wants...)
		})
	}
	t.Run("it answers again", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.wakes()
		n.settings.DaemonSets[0].Socket = filepath.Join(dir, "later")
		n.expect(doubt, doubt, doubt, doubt)
		listen("later", func(c net.Conn) { _ = c.Close() })
		n.expect("")
		if err := syscall.Unlink(filepath.Join(dir, "later")); err != nil {
			t.Fatal(err)
		}
		n.expect(doubt)
	})
}

func TestNothingListed(t *testing.T) {
	n := newNode(t)
	n.settings.DaemonSets = nil
	n.expect("not applicable")
}

func TestSettings(t *testing.T) {
	for name, bad := range map[string]Watched{
		"no namespace": {Name: "agent"}, "no name": {Name: "kube-system/"}, "two slashes": {Name: "a/b/c"},
		"both": {Name: "a/b", Socket: "/run/x", Port: 1}, "elsewhere": {Name: "a/b", Socket: "/mnt/nfs/x"},
		"climbs": {Name: "a/b", Socket: "/run/../mnt/x"}, "port": {Name: "a/b", Port: 70000},
	} {
		if wrong, _ := errors.AsType[setting.Mistakes]((Settings{DaemonSets: []Watched{bad}}).Validate()); len(wrong) != 1 {
			t.Errorf("%s: no problem", name)
		}
	}
	good := Watched{Name: "a/b", Socket: "/run/x.sock"}
	if err := (Settings{DaemonSets: []Watched{good, {Name: "a/c", Port: 99}}}).Validate(); err != nil {
		t.Error(err)
	}
	if wrong, _ := errors.AsType[setting.Mistakes]((Settings{DaemonSets: []Watched{good, good}}).Validate()); len(wrong) != 1 {
		t.Error(wrong)
	}
}
