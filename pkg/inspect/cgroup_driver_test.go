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
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

func TestDriverIsDecided(t *testing.T) {
	fs, systemd := host.CgroupfsDriver, host.SystemdDriver
	none := errors.New("unknown service")
	for name, test := range map[string]struct {
		witness driverWitness
		want    string
	}{
		"configured": {driverWitness{configured: fs, living: map[string]int{systemd: 3}, runtime: systemd},
			fs},
		"living pods":          {driverWitness{living: map[string]int{fs: 1}}, fs},
		"of systemd":           {driverWitness{living: map[string]int{systemd: 9}, runtimeErr: none}, systemd},
		"before the runtime":   {driverWitness{living: map[string]int{fs: 1}, runtime: systemd}, fs},
		"in both trees":        {driverWitness{living: map[string]int{fs: 1, systemd: 90}, runtime: systemd}, ""},
		"runtime":              {driverWitness{runtime: systemd}, systemd},
		"runtime, cgroupfs":    {driverWitness{runtime: fs}, fs},
		"old runtime":          {driverWitness{runtimeErr: none}, ""},
		"runtime, another one": {driverWitness{runtime: "crun"}, ""},
		"nobody":               {driverWitness{}, ""},
	} {
		if got, why := test.witness.decide(); got != test.want || why == "" {
			t.Errorf("%s: %q %q, want %q", name, got, why, test.want)
		}
	}
}

// Two kubelets on one host: ours with one driver, another with the other. Objects in the other tree that our witnesses
// do not know are the other kubelet's living pods.
func TestOtherDriversTreeIsForeign(t *testing.T) {
	const ours, theirs = "00000000-0000-4000-8000-0000000000dd", "00000000-0000-4000-8000-0000000000ee"
	hosttest.PrivateNetwork(t)
	for name, test := range map[string]struct {
		living          bool   // a pod that kubelet has is in the tree of cgroupfs
		runtime         string // the driver that it reports; empty: none
		kubelet         error
		ofOurs, ofOther Verdict
	}{
		"living pods":             {true, "", nil, Leftover, Foreign},
		"before the runtime":      {true, host.SystemdDriver, nil, Leftover, Foreign},
		"runtime":                 {false, host.CgroupfsDriver, nil, Leftover, Foreign},
		"runtime, the other way":  {false, host.SystemdDriver, nil, Foreign, Leftover},
		"nobody":                  {false, "", nil, Unknown, Unknown},
		"kubelet does not answer": {true, "", errors.New("refused"), Unknown, Unknown},
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
			report := n.ripen(t, History{}, n.inspector())
			for uid, want := range map[string]Verdict{ours: test.ofOurs, theirs: test.ofOther} {
				if got := ofPod(report, uid); !slices.Equal(got, []Verdict{want}) {
					t.Errorf("pod %s: %v, want %s: %s", uid, got, want, whys(report, uid))
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
	var history History
	i := New(h, settings(), slog.New(slog.DiscardHandler))
	h.Clock = func() finding.Timestamp { return now }
	gateNow := func(kubelet int) Gate {
		t.Helper()
		h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: kubelet}, nil }
		var report Report
		report, history = i.Pass(t.Context(), history, Process)
		at := slices.IndexFunc(report.Gates, func(g Gate) bool { return g.Name == "no-other-kubelet" })
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

// A process of an earlier boot no longer exists.
func TestOtherKubeletOfAnotherBoot(t *testing.T) {
	seen := at(time.Hour)
	history := History{otherKubeletKey: {Identity: Identity{"kubelet": "x"}, First: seen, Last: seen}}
	for boot, want := range map[string]bool{seen.Boot: true, "another": false} {
		now := at(time.Hour + time.Minute)
		now.Boot = boot
		var o OtherKubelets
		o.recall(history, now)
		if (o.Past != "") != want {
			t.Errorf("boot %s: %q", boot, o.Past)
		}
	}
}

// A list with an error proves no pod.
func TestLivePodsOfAKubeletThatDoesNotAnswer(t *testing.T) {
	o := object(Cgroup, living)
	o.Facts = map[string]string{"driver": host.CgroupfsDriver}
	inventory := healthy().Kubelet
	if got := livingByDriver([]Object{o, o}, inventory); got[host.CgroupfsDriver] != 1 {
		t.Errorf("with an answer: %v", got)
	}
	names := byName()
	names.resolveNames()
	if got := livingByDriver([]Object{o}, names.Kubelet); got[host.CgroupfsDriver] != 1 {
		t.Errorf("with names only, and its sandbox: %v", got)
	}
	inventory.Err = errors.New("cut off")
	if got := livingByDriver([]Object{o}, inventory); len(got) != 0 {
		t.Errorf("without an answer: %v", got)
	}
}

func TestProcessOfTwoPodsIsForeign(t *testing.T) {
	scan := &hostscan.Scan{Processes: func() (hostscan.ProcessTable, error) {
		return hostscan.ProcessTable{Pods: []hostscan.PodProcess{{UID: dead, Conflict: "in cgroups of two pods"}}}, nil
	}}
	objects, err := listProcesses(t.Context(), scan)
	if err != nil || len(objects) != 1 || objects[0].Foreign == "" {
		t.Errorf("%+v, %v", objects, err)
	}
}
