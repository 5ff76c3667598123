package lab

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

var withLab = flag.Bool("lab", false, "run the tests that bring up a real cluster; needs root")

var containerd = flag.String("containerd", "1", "run this containerd in it: 1 or 2")

const testDir = "/var/lib/nodeagent-lab-test"

// needLab skips a test, by name, on a machine that cannot run a real lab.
func needLab(t *testing.T) {
	t.Helper()
	need.Flag(t, *withLab, "-lab: brings up a real cluster")
	need.Root(t, "brings up a real cluster")
}

func up(t *testing.T) *Lab {
	t.Helper()
	l, err := Up(t.Context(), Options{Dir: testDir, Containerd: *containerd, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLab follows one lab through its life. The steps build on each other.
func TestLab(t *testing.T) {
	needLab(t)
	before := takeSnapshot(t)
	t.Cleanup(func() {
		if err := Down(context.WithoutCancel(t.Context()), testDir, t.Output()); err != nil {
			t.Error(err)
		}
		before.compare(t)
	})
	up(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"up again", testUpAgain},
		{"pod", testPod},
		{"exec and logs", testExec},
		{"service account", testServiceAccount},
		{"own image", testOwnImage},
		{"host port", testHostPort},
		{"stop and start", testStopStart},
		{"repair after crash", testRepair},
		{"stale state", testStaleState},
		{"down while stopped, frozen and busy", testDownHung},
		{"down again", testDownAgain},
	} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

func testUpAgain(t *testing.T) {
	first, err := Open(testDir)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	second := up(t)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a healthy lab took %v", took)
	}
	for _, name := range Components {
		one, err1 := first.PID(name)
		two, err2 := second.PID(name)
		if err1 != nil || err2 != nil || one != two {
			t.Errorf("%s: process %d (%v), then %d (%v)", name, one, err1, two, err2)
		}
	}
	if err := second.WaitNodeReady(t.Context()); err != nil {
		t.Error(err)
	}
}

func testPod(t *testing.T) {
	l := up(t)
	pod := runPod(t, l, "pod")
	if !strings.HasPrefix(pod.IP, "10.244.7") || len(pod.ContainerIDs) != 1 {
		t.Errorf("pod %+v", pod)
	}
	if dirs := cgroupsOf(t, pod.UID); len(dirs) == 0 {
		t.Error("the pod has no cgroup below the lab's")
	}
	if err := l.DeletePod(t.Context(), "default", "pod"); err != nil {
		t.Fatal(err)
	}
	gone := func(context.Context) error {
		left := cgroupsOf(t, pod.UID)
		if dir := filepath.Join(l.Paths.KubeletRoot, "pods", pod.UID); exists(dir) {
			left = append(left, dir)
		}
		if lease := filepath.Join(l.Paths.CNINetworksDir, Network, pod.IP); exists(lease) {
			left = append(left, lease)
		}
		if len(left) > 0 {
			return fmt.Errorf("the deleted pod left %v", left)
		}
		return nil
	}
	if err := poll(t.Context(), 2*time.Minute, 100*time.Millisecond, gone); err != nil {
		t.Error(err)
	}
}

// testExec needs the path from the apiserver to kubelet, and from there to containerd.
func testExec(t *testing.T) {
	l := up(t)
	runPod(t, l, "talk", "sh", "-c", "echo hello; sleep 1000000")
	for _, args := range [][]string{{"exec", "talk", "--", "echo", "hello"}, {"logs", "talk"}} {
		if out, err := l.Kubectl(t.Context(), args...); err != nil || string(out) != "hello\n" {
			t.Errorf("kubectl %v: %q %v", args, out, err)
		}
	}
}

func testServiceAccount(t *testing.T) {
	l := up(t)
	if _, err := l.Kubectl(t.Context(), "create", "serviceaccount", "agent"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := l.ServiceAccountKubeconfig(t.Context(), "default", "agent", file); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), "", l.Paths.Kubectl, "--kubeconfig="+file, "auth", "whoami", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"system:serviceaccount:default:agent", "authentication.kubernetes.io/node-name",
		l.NodeName} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("whoami: no %q in %s", want, out)
		}
	}
	if out, err := run(t.Context(), "", l.Paths.Kubectl, "--kubeconfig="+file, "get", "nodes"); err == nil {
		t.Errorf("an account without rights lists nodes: %s", out)
	}
}

func testOwnImage(t *testing.T) {
	l := up(t)
	program := filepath.Join(l.Dir, "bin/pause")
	err := l.ImportImage(t.Context(), "localhost/own:1", map[string]string{"/own": program}, []string{"/own"})
	if err != nil {
		t.Fatal(err)
	}
	manifest := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": {"terminationGracePeriodSeconds": 1,
		"containers": [{"name": "own", "image": "localhost/own:1", "imagePullPolicy": "Never", "args": ["ignore-term"]}]}}`
	if err := l.KubectlApply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WaitPodRunning(t.Context(), "default", "own"); err != nil {
		t.Error(err)
	}
}

// testHostPort creates the portmap plugin's rules in the nat table, and leaves them there for Down.
func testHostPort(t *testing.T) {
	l := up(t)
	manifest := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"terminationGracePeriodSeconds": 1,
		"containers": [{"name": "web", "image": "` + BusyboxImage + `", "imagePullPolicy": "Never", "command": ["httpd", "-f", "-p", "8080"],
		"ports": [{"containerPort": 8080, "hostPort": 18080, "hostIP": "127.0.0.1"}]}]}}`
	if err := l.KubectlApply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	pod, err := l.WaitPodRunning(t.Context(), "default", "web")
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{pod.IP + ":8080", "127.0.0.1:18080"} {
		if err := poll(t.Context(), 2*time.Minute, 100*time.Millisecond, accepts("tcp", address)); err != nil {
			t.Error(err)
		}
	}
}

func testStopStart(t *testing.T) {
	l := up(t)
	pod := runPod(t, l, "survivor")
	for _, name := range []string{"kubelet", "containerd", "kube-apiserver", "etcd"} {
		began := time.Now()
		if err := l.Stop(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s stopped only after %v", name, took)
		}
		if _, err := l.PID(name); err == nil {
			t.Errorf("%s runs after Stop", name)
		}
	}
	for _, name := range Components {
		if err := l.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := poll(t.Context(), 5*time.Minute, 200*time.Millisecond, l.Healthy); err != nil {
		t.Fatal(err)
	}
	after, err := l.WaitPodRunning(t.Context(), "default", "survivor")
	if err != nil || !slices.Equal(after.ContainerIDs, pod.ContainerIDs) {
		t.Errorf("the pod did not survive: before %+v, after %+v, %v", pod, after, err)
	}
}

func testRepair(t *testing.T) {
	l := up(t)
	kubelet, err := l.PID("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet", "containerd"} {
		if err := l.Signal(name, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	l = up(t)
	if again, err := l.PID("kubelet"); err != nil || again == kubelet {
		t.Errorf("kubelet is process %d, was %d, %v", again, kubelet, err)
	}
	runPod(t, l, "repaired")
}

// testStaleState leaves a recorded process that has become another one, a torn file, and unknown mounts.
func testStaleState(t *testing.T) {
	l := up(t)
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		bystander.Process.Kill()
		bystander.Wait()
	}()
	for _, name := range Components {
		if err := l.Signal(name, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	stale := fmt.Sprintf(`{"pid": %d, "start": 1, "boot": %q}`, bystander.Process.Pid, bootID())
	for name, text := range map[string]string{"kubelet": stale, "etcd": `{"pid": 1`} {
		if err := os.WriteFile(pidFile(testDir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stackMounts(t, filepath.Join(testDir, "stale mount"))
	runPod(t, up(t), "fresh")
	if err := bystander.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("a process that only has the recorded number was ended: %v", err)
	}
}

func testDownHung(t *testing.T) {
	l := up(t)
	runPod(t, l, "frozen")
	stackMounts(t, filepath.Join(testDir, "mounted"))
	for _, name := range []string{"containerd", "kubelet"} {
		if err := l.Signal(name, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if freezer := filepath.Join("/sys/fs/cgroup/freezer", l.Paths.CgroupRoot, "kubepods/freezer.state"); exists(freezer) {
		if err := overwrite(freezer, "FROZEN"); err != nil {
			t.Fatal(err)
		}
	}
	busy, err := os.Open(filepath.Join(testDir, "mounted"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	stuck := hungFUSE(t, filepath.Join(testDir, "hung"))
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stuck.Wait(); err == nil {
		t.Error("a call on the filesystem that hung succeeded")
	}
}

// hungFUSE mounts a FUSE filesystem whose server never answers, and returns a process that waits for it.
func hungFUSE(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	if err := unix.Mount("hung", dir, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	stuck := exec.Command("/bin/ls", dir)
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	return stuck
}

func testDownAgain(t *testing.T) {
	if err := Down(t.Context(), testDir, t.Output()); err != nil {
		t.Error(err)
	}
	if _, err := Open(testDir); err == nil {
		t.Error("Open finds a lab after Down")
	}
}

func runPod(t *testing.T, l *Lab, name string, command ...string) PodStatus {
	t.Helper()
	if err := l.RunPod(t.Context(), "default", name, command...); err != nil {
		t.Fatal(err)
	}
	pod, err := l.WaitPodRunning(t.Context(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func stackMounts(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
}

func cgroupsOf(t *testing.T, uid string) []string {
	t.Helper()
	all, err := labCgroups(testDir)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(dir string) bool { return !strings.Contains(dir, uid) })
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
