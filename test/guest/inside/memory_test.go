package inside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutOfMemoryInPod: a container reaches its own limit and the kernel kills it; the pod is reported, not the node.
// (pkg/detect tests with a fake clock that it is no longer reported after ten minutes.)
func TestOutOfMemoryInPod(t *testing.T) {
	a := watch(t)
	const uid = "0d0e0f00-1111-4222-8333-444455556666"
	pod := "/sys/fs/cgroup/kubepods/burstable/pod" + uid
	container := filepath.Join(pod, strings.Repeat("c0ffee", 11)[:64])
	if err := os.MkdirAll(container, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := pod; dir != "/sys/fs"; dir = filepath.Dir(dir) {
		defer func() {
			if strings.Contains(dir, "kubepods") {
				_ = os.Remove(dir)
			}
		}()
	}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/kubepods/burstable",
		pod} {
		put(t, dir+"/cgroup.subtree_control", "+memory")
	}
	put(t, container+"/memory.max", "20M")
	hog := exec.Command("/bin/sh", "-c", "echo $$ > "+container+"/cgroup.procs; exec tail /dev/zero")
	if out, err := hog.CombinedOutput(); err == nil {
		t.Fatalf("it was not killed: %s", out)
	}
	a.awaitFound("oom-kills", func(f believed) bool {
		return f.Reason == "ContainerOOMKilled" && f.Severity == "info" && strings.Contains(f.Message+f.Subject.Name,
			uid)
	}, true)
	if s := a.status(); has(s, "oom-kills", "OOMKilling") || has(s, "kernel-log", "OOMKilling") {
		t.Errorf("the node is blamed: %+v", s.Findings)
	}
}
