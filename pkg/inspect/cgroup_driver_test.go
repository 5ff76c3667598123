package inspect

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Two kubelets on one host: ours with one driver, another with the other. Objects in the other tree that our witnesses
// do not know are the other kubelet's living pods.
func TestOtherDriversTreeIsForeign(t *testing.T) {
	const ours, theirs = "00000000-0000-4000-8000-0000000000dd", "00000000-0000-4000-8000-0000000000ee"
	hosttest.PrivateNetwork(t)
	for name, test := range map[string]struct {
		living          bool   // a pod that kubelet has is in the tree of cgroupfs
		runtime         string // the driver that it reports; empty: none
		kubelet         error
		ofOurs, ofOther object.Verdict
	}{
		"living pods":             {true, "", nil, object.Leftover, object.Foreign},
		"before the runtime":      {true, host.SystemdDriver, nil, object.Leftover, object.Foreign},
		"runtime":                 {false, host.CgroupfsDriver, nil, object.Leftover, object.Foreign},
		"runtime, the other way":  {false, host.SystemdDriver, nil, object.Foreign, object.Leftover},
		"nobody":                  {false, "", nil, object.Unknown, object.Unknown},
		"kubelet does not answer": {true, "", errors.New("refused"), object.Unknown, object.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.Host.Paths.CgroupDriver = ""
			n.Host.Runtime.CgroupDriver = nil
			if test.runtime != "" {
				n.Host.Runtime.CgroupDriver = hosttest.Answer(test.runtime, nil)
			}
			if test.living {
				n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + living)
			}
			n.KubeletErr = test.kubelet
			n.Process(n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + ours)...)
			top := strings.ReplaceAll(n.Host.Paths.CgroupRoot[1:], "-", "_") // in systemd's form
			n.Process(n.Cgroups(fmt.Sprintf("%s.slice/%[1]s-kubepods.slice/%[1]s-kubepods-pod%s.slice/cri-containerd-%s.scope",
				top, strings.ReplaceAll(theirs, "-", "_"), strings.Repeat("e", 64)))...)
			report := n.ripen(t, object.History{}, n.inspector())
			for uid, want := range map[string]object.Verdict{ours: test.ofOurs, theirs: test.ofOther} {
				if got := ofPod(report, uid); !slices.Equal(got, []object.Verdict{want}) {
					t.Errorf("pod %s: %v, want %s: %s", uid, got, want, inspecttest.Whys(report, uid))
				}
			}
		})
	}
}

// A fake node: kubelets that share directories cannot run beside other tests.
func sharedNode(t *testing.T) *host.Host {
	t.Helper()
	h := hosttest.Host(t)
	put := func(name, content string) {
		file := filepath.Join(h.Files.Root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, file, content)
	}
	const mounts = "25 1 254:1 / / rw - ext4 /dev/vda1 rw\n30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for pid, comm := range map[int]string{1: "init", 900: "kubelet"} {
		put(fmt.Sprintf("proc/%d/mountinfo", pid), mounts)
		put(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (%s) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n",
			pid, comm))
		put(fmt.Sprintf("proc/%d/cgroup", pid), "0::/\n")
		put(fmt.Sprintf("proc/%d/status", pid), "Uid:\t0 0 0 0\n")
		put(fmt.Sprintf("proc/%d/cmdline", pid), comm+"\x00")
	}
	return h
}

// While another kubelet may keep its pods in our kubelet's place, and for some time afterwards, there are no leftovers:
// the gate names it.
func TestOtherKubeletStopsEverything(t *testing.T) {
	h := sharedNode(t)
	now := hosttest.Now()
	var history object.History
	i := New(h, inspecttest.Settings(), slog.New(slog.DiscardHandler))
	h.Clock = func() finding.Timestamp { return now }
	gateNow := func(kubelet int) object.Gate {
		t.Helper()
		h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: kubelet}, nil }
		var report object.Report
		report, history = i.Pass(t.Context(), history, object.Process)
		at := slices.IndexFunc(report.Gates, func(g object.Gate) bool { return g.Name == "no-other-kubelet" })
		return report.Gates[at]
	}
	later := func(d time.Duration) { now.SinceBoot, now.Wall = now.SinceBoot+d, now.Wall.Add(d) }
	if g := gateNow(900); !g.Open {
		t.Fatalf("ours alone: %+v", g)
	}
	later(time.Minute)
	if g := gateNow(901); g.Open || !strings.Contains(g.Why,
		"another kubelet runs here: PID 900 (kubelet): it may keep") {
		t.Errorf("another: %+v", g)
	}
	later(30 * time.Minute)
	if g := gateNow(900); g.Open || !strings.Contains(g.Why, "30m0s ago: PID 900 (kubelet)") {
		t.Errorf("half an hour later: %+v", g)
	}
	later(29 * time.Minute)
	if g := gateNow(900); g.Open {
		t.Errorf("not yet an hour later: %+v", g)
	}
	later(time.Minute)
	if g := gateNow(900); !g.Open {
		t.Errorf("an hour later: %+v", g)
	}
	if len(history) != 0 {
		t.Errorf("remembered: %v", history)
	}
	if err := os.RemoveAll(filepath.Join(h.Files.Root, "proc/900/status")); err != nil {
		t.Fatal(err)
	}
	if g := gateNow(901); g.Open || !strings.Contains(g.Why, "whether another kubelet runs here") {
		t.Errorf("undecidable: %+v", g)
	}
}
