package host_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// The processes of a container are those in its cgroup and below it, in any hierarchy; its main process is the oldest
// of those not started inside.
func TestContainerProcesses(t *testing.T) {
	root := t.TempDir()
	mine, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	process := func(pid, parent, start int, cgroup string) {
		hosttest.Write(t, root, fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (x) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 "+
			"%d 0 0\n", pid, parent, start))
		hosttest.Write(t, root, fmt.Sprintf("proc/%d/cgroup", pid), cgroup)
	}
	process(5, 1, 10, "0::/system.slice/containerd.service\n")
	process(20, 5, 300, "0::/kubepods/pod1/"+mine+"\n") // exec, with a lower number
	process(30, 5, 200, "0::/kubepods/pod1/"+mine+"\n")
	process(31, 30, 100, "3:cpu:/elsewhere\n1:name=systemd:/kubepods.slice/cri-containerd-"+mine+".scope/child\n")
	process(40, 5, 50, "0::/kubepods/pod1/"+other+"\n")
	h := &host.Host{Files: host.Files{Root: root}}
	found, err := h.ContainerProcesses(mine)
	if err != nil || len(found) != 3 {
		t.Fatalf("%v, %v", found, err)
	}
	if main, ok := host.MainProcess(found); !ok || main.PID != 30 {
		t.Errorf("%v, %v", main, ok)
	}
	if _, ok := host.MainProcess(nil); ok {
		t.Error("the main process of nothing")
	}
	if found, err := h.ContainerProcesses(mine[:12]); err == nil {
		t.Errorf("an abbreviation: %v", found)
	}
	hosttest.Write(t, root, "proc/50/cgroup", "malformed")
	if found, err := h.ContainerProcesses(mine); err == nil {
		t.Errorf("a process that cannot be read: %v", found)
	}
}

func TestContainerIDOf(t *testing.T) {
	id := strings.Repeat("a", 64)
	for text, want := range map[string]string{"containerd://" + id: id, "cri-o://" + id: id, "": "", id: "",
		"containerd://" + id[:12]: "", "containerd://../" + id: ""} {
		if got := host.ContainerIDOf(&corev1.ContainerStatus{ContainerID: text}); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
