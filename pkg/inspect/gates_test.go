package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// Each gate is closed by its own cause only; gates that need the same witness close together. While any of them is
// closed, there are no leftovers.
func TestEachGateCloses(t *testing.T) {
	broken := errors.New("broken")
	needList := "apiserver-heard list-is-ours kubelet-sources node-identity"
	tests := []struct {
		name string
		bend func(*Inventory, *Settings)
		want string // the closed gates
		why  string // part of the first one's reason
	}{
		{"none", func(*Inventory, *Settings) {}, "", ""},
		{"kubelet unheard", func(t *Inventory, _ *Settings) {
			t.Kubelet.Err = broken
		}, "kubelet-heard kubelet-sources", "broken"},
		{"kubelet unasked", func(t *Inventory, _ *Settings) {
			t.Kubelet.Asked = false
		}, "kubelet-heard kubelet-sources", "not asked"},
		{"kubelet young", func(t *Inventory, _ *Settings) {
			t.Kubelet.Age = 9 * time.Minute
		}, "kubelet-uptime", "9m0s of 10m0s"},
		{"kubelet of unknown age", func(t *Inventory, _ *Settings) {
			t.Kubelet.AgeErr = broken
		}, "kubelet-uptime", "broken"},
		{"kubelet works", func(t *Inventory, _ *Settings) {
			t.Kubelet.Working = 1
		}, "kubelet-not-working", "still terminating 1 pods"},
		{"kubelet's work unknown", func(t *Inventory, _ *Settings) {
			t.Kubelet.WorkingErr = broken
		}, "kubelet-not-working", "broken"},
		{"kubelet does not count yet", func(t *Inventory, _ *Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = errNoMetric, "v1.30.1"
		}, "kubelet-not-working", "has not received all its sources"},
		{"runtime unheard", func(t *Inventory, _ *Settings) {
			t.Runtime.Err = broken
		}, "runtime-heard runtime-ready network-ready", "broken"},
		{"containerd unheard", func(t *Inventory, _ *Settings) {
			t.Containerd.Err = broken
		}, "runtime-heard", "containerd's lists: broken"},
		{"containerd unasked", func(t *Inventory, _ *Settings) {
			t.Containerd.Asked = false
		}, "runtime-heard", "not asked"},
		{"another runtime", func(t *Inventory, _ *Settings) {
			t.Containerd = ContainerdInventory{Other: "cri-o"}
		}, "", ""},
		{"runtime young", func(t *Inventory, _ *Settings) {
			t.Runtime.Age = 4 * time.Minute
		}, "runtime-uptime", "4m0s of 5m0s"},
		{"runtime of unknown age", func(t *Inventory, _ *Settings) {
			t.Runtime.AgeErr = broken
		}, "runtime-uptime", "broken"},
		{"runtime not ready", func(t *Inventory, _ *Settings) { t.Runtime.Ready.OK = false }, "runtime-ready", ""},
		{"network not ready", func(t *Inventory, _ *Settings) { t.Runtime.NetReady.OK = false }, "network-ready", ""},
		{"other namespaces", func(_ *Inventory, s *Settings) {
			s.HostNamespaces = false
		}, "host-namespaces", "does not see"},
		{"mass orphaning", func(_ *Inventory, s *Settings) { s.MassOrphaning = 0 }, "no-mass-orphaning",
			"1 of 2 pods"},
		{"apiserver unheard", func(t *Inventory, _ *Settings) { t.Cluster.Err = broken }, needList, "broken"},
		{"apiserver unasked", func(t *Inventory, _ *Settings) { t.Cluster.Asked = false }, needList, "not asked"},
		{"nothing shared", func(t *Inventory, _ *Settings) {
			t.Cluster.Shared = 0
		}, "list-is-ours", "none of kubelet's pods is in the list"},
		{"nothing shared but the agent's own pod", func(t *Inventory, _ *Settings) {
			t.Cluster.Shared, t.Own = 0, living
		}, "", ""},
		{"the agent's own pod is a mirror", func(t *Inventory, _ *Settings) {
			t.Cluster.Shared, t.Own = 0, living
			t.Cluster.Pods = map[string]PodFact{living: {Pod: Pod{UID: living}, Mirror: true}}
		}, "list-is-ours", "none of kubelet's pods"},
		{"the agent's own pod is unlisted", func(t *Inventory, _ *Settings) {
			t.Own = other
		}, "list-is-ours", "lacks the agent's own pod"},
		{"the agent's own pod is unknown", func(t *Inventory, _ *Settings) {
			t.Own = unknownPod
		}, "list-is-ours", "lacks the agent's own pod"},
		{"pods of other nodes", func(t *Inventory, _ *Settings) {
			t.Cluster.OnOtherNodes = []string{"a", "b", "c", "d"}
		}, "list-is-ours", "a, b, c and 1 more"},
		{"an old list", func(t *Inventory, _ *Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 50, 11
		}, "list-is-ours", "lacks 11 of 50"},
		{"a list of a moment ago", func(t *Inventory, _ *Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 50, 10
		}, "", ""},
		{"kubelet lacks the agent's own pod", func(t *Inventory, _ *Settings) {
			t.Own = other
			t.Cluster.Pods[other] = pod(other, "nodeagent")
		}, "kubelet-sources", "lacks the agent's own pod"},
		{"kubelet's second answer lacks the agent's own pod", func(t *Inventory, _ *Settings) {
			t.Own, t.Kubelet.Again = living, map[string]PodFact{}
		}, "kubelet-sources", "lacks the agent's own pod"},
		{"kubelet's second answer has the agent's own pod", func(t *Inventory, _ *Settings) {
			t.Own, t.Kubelet.Again = living, t.Kubelet.Pods
		}, "", ""},
		{"kubelet lacks what it has known", func(t *Inventory, _ *Settings) {
			t.Cluster.Listed, t.Cluster.Lacked, t.Cluster.Proven = 10, 1, []string{"default/web"}
		}, "kubelet-sources", "that it has known before: default/web"},
		{"kubelet lacks most", func(t *Inventory, _ *Settings) {
			t.Cluster.Listed, t.Cluster.Lacked = 5, 3
		}, "kubelet-sources", "lacks 3 of 5"},
		{"kubelet lacks the one that was just bound", func(t *Inventory, _ *Settings) {
			t.Cluster.Listed, t.Cluster.Lacked = 2, 1
		}, "", ""},
		{"kubelet has static pods only, others run", func(t *Inventory, _ *Settings) {
			t.Kubelet.Pods = map[string]PodFact{static: {Pod: Pod{UID: static}, Static: true}}
			t.Runtime.Running = map[string]bool{other: true, static: true}
		}, "kubelet-sources", "no pod from the apiserver, while these are running: " + other},
		{"kubelet has static pods only, and they run", func(t *Inventory, _ *Settings) {
			t.Kubelet.Pods = map[string]PodFact{static: {Pod: Pod{UID: static}, Static: true}}
			t.Runtime.Running = map[string]bool{static: true, strings.Repeat("7", 32): true, dead: true}
			t.Runtime.Pods[dead] = SandboxFact{Source: "file"}
		}, "", ""},
		{"another machine", func(t *Inventory, _ *Settings) {
			t.Cluster.Machine = "x"
		}, "node-identity", `machineID "x"`},
		{"another boot", func(t *Inventory, _ *Settings) { t.Cluster.Boot = "x" }, "node-identity", `bootID "x"`},
		{"no boot", func(t *Inventory, _ *Settings) {
			t.Cluster.Boot, t.Cluster.LocalBoot = "", ""
		}, "node-identity", `bootID ""`},
		{"node unheard", func(t *Inventory, _ *Settings) { t.Cluster.NodeErr = broken }, "node-identity", "broken"},
		{"this machine unknown", func(t *Inventory, _ *Settings) {
			t.Cluster.LocalErr = broken
		}, "node-identity", "broken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, s := healthy(), settings()
			test.bend(&inventory, &s)
			var names []string
			why := ""
			for _, g := range gates(&inventory, s, 1, 0, 0, nil) {
				if !g.Open {
					if names = append(names, g.Name); why == "" {
						why = g.Why
					}
				}
			}
			if got := strings.Join(names, " "); got != test.want || !strings.Contains(why, test.why) {
				t.Errorf("closed: %s: %s\nwant %s: … %s …", got, why, test.want, test.why)
			}
			o := object(Netns, "66666666-6666-4666-8666-666666666666")
			report, _ := Evaluate([]Object{o}, inventory, seenLong(o), s, hour)
			if got := report.Objects[0]; (got.Verdict == Leftover) != (test.want == "") {
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
		})
	}
}

func TestPodMissingFromTheListClosesTheGate(t *testing.T) {
	inventory := healthy()
	g := listIsOurs(&inventory, settings(), 1, []string{"default/web"})
	if g.Open || !g.unknown || !strings.Contains(g.Why, "returns by name: default/web") {
		t.Errorf("%+v", g)
	}
}

// The breaker's two limits: a number, and a share of all pods that a witness knows or that left objects.
func TestBreaker(t *testing.T) {
	for _, test := range []struct {
		known, orphans int
		open           bool
	}{{0, 3, true}, {0, 4, false}, {10, 3, true}, {10, 4, false}, {80, 20, true}, {79, 21, false}, {160, 40, true},
		{159, 41, false}, {100, 0, true}} {
		inventory := healthy()
		inventory.Kubelet.Pods, inventory.Cluster.Pods = map[string]PodFact{}, map[string]PodFact{}
		for n := range test.known {
			inventory.Kubelet.Pods[uidOf(n)] = PodFact{Pod: Pod{UID: uidOf(n)}}
			inventory.Cluster.Pods[uidOf(n)] = PodFact{Pod: Pod{UID: uidOf(n)}} // the same pod, not another one
		}
		if g := noMassOrphaning(&inventory, settings(), test.orphans); g.Open != test.open {
			t.Errorf("%d of %d known: %+v", test.orphans, test.known, g)
		}
	}
}

// On a busy node, the sandboxes of many pods wait for kubelet's garbage collector. They close no gate; existing objects
// of a pod that a wrong witness denies do.
func TestEndedSandboxesAreNoMassOrphaning(t *testing.T) {
	leftover := object(PodDirectory, dead)
	leftover.ID = dead
	for name, test := range map[string]struct {
		state       string
		more        Kind
		removed     bool // since they were listed
		directories int  // of the three pods that kubelet has
		want        Verdict
	}{
		"ended":                       {"NOTREADY", "", false, 3, Leftover},
		"most directories are seen":   {"NOTREADY", "", false, 2, Leftover},
		"few directories are seen":    {"NOTREADY", "", false, 1, Candidate},
		"no directories are seen":     {"NOTREADY", "", false, 0, Candidate},
		"their logs are there too":    {"NOTREADY", PodLogs, false, 3, Leftover},
		"they run":                    {"READY", "", false, 3, Candidate},
		"a container runs":            {"NOTREADY", Container, false, 3, Candidate},
		"their directories are there": {"NOTREADY", PodDirectory, false, 3, Candidate},
		"their cgroups are there":     {"NOTREADY", Cgroup, false, 3, Candidate},
		"they have been removed":      {"READY", PodDirectory, true, 3, Leftover},
		"removed, from elsewhere":     {"READY", PodDirectory, true, 0, Candidate},
	} {
		t.Run(name, func(t *testing.T) {
			objects, inventory := []Object{leftover}, healthy()
			inventory.Removed = make(map[string]bool)
			delete(inventory.Kubelet.Pods, living)
			for n := range 3 {
				inventory.Kubelet.Pods[uidOf(100+n)] = pod(uidOf(100+n), "web")
				if o := object(PodDirectory, uidOf(100+n)); n < test.directories {
					o.ID = o.Pod.UID
					objects = append(objects, o)
				}
			}
			for n := range 10 {
				inventory.Removed[uidOf(n)] = test.removed
				for kind, state := range map[Kind]string{Sandbox: test.state, test.more: "RUNNING"} {
					o := object(kind, uidOf(n))
					o.ID, o.Facts = o.Pod.UID, Facts("state", state)
					if kind != "" {
						objects = append(objects, o)
					}
				}
			}
			report, _ := Evaluate(objects, inventory, seenLong(objects...), settings(), hour)
			for _, o := range report.Objects {
				if o.Pod.UID == dead && o.Verdict != test.want {
					t.Errorf("%s: %s", o.Verdict, o.Why)
				}
			}
		})
	}
}

// Metrics of kubelet v1.36.3 after its first clean-up, with pods it still works on.
func TestWorkingPods(t *testing.T) {
	for _, test := range []struct {
		config, lifecycle string
		want              int
	}{
		{"orphan", "sync", 5}, {"orphan", "terminating", 5}, {"orphan", "terminated", 0},
		{"runtime_only", "sync", 5}, {"runtime_only", "terminating", 5}, {"runtime_only", "terminated", 0},
		{"desired", "sync", 0}, {"desired", "terminating", 0}, {"desired", "terminated", 0},
	} {
		text := "# HELP kubelet_working_pods [ALPHA] Number of pods the kubelet is actually running\n# TYPE " +
			"kubelet_working_pods gauge\n"
		for _, config := range []string{"desired", "orphan", "runtime_only"} {
			for _, lifecycle := range []string{"sync", "terminated", "terminating"} {
				for _, static := range []string{"", "true", "unknown"} {
					value := 0
					if config == test.config && lifecycle == test.lifecycle {
						value = map[string]int{"": 1, "true": 4}[static]
					}
					text += fmt.Sprintf("kubelet_working_pods{config=%q,lifecycle=%q,static=%q} %d\n", config,
						lifecycle, static, value)
				}
			}
		}
		counts, h := map[string]float64{}, hosttest.Host(t)
		metrics, err := kubelet.ParseMetrics(strings.NewReader(text), []string{workingFamily})
		if err != nil || len(metrics[workingFamily]) != 27 {
			t.Fatalf("%d samples, %v", len(metrics[workingFamily]), err)
		}
		for _, sample := range metrics[workingFamily] {
			counts[sample.Labels] = sample.Value
		}
		h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return counts, nil }
		got, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{}))
		if got != test.want || err != nil {
			t.Errorf("%s, %s: %d, %v", test.config, test.lifecycle, got, err)
		}
	}
}

func TestWorkingPodsUnknown(t *testing.T) {
	h := hosttest.Host(t)
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return nil, nil }
	if _, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); !errors.Is(err,
		errNoMetric) {
		t.Errorf("no samples: %v", err)
	}
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) {
		return nil, errors.New("refused")
	}
	if _, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); err == nil ||
		errors.Is(err, errNoMetric) {
		t.Errorf("refused: %v", err)
	}
	if version := askVersion(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); version != "" {
		t.Errorf("version %q", version)
	}
}

// The mutual proofs of the two lists.
func TestCompare(t *testing.T) {
	fact := func(bend func(*PodFact)) PodFact {
		f := PodFact{Pod: Pod{UID: "x", Namespace: "default", Name: "x"}, Phase: "Running"}
		bend(&f)
		return f
	}
	plain := fact(func(*PodFact) {})
	for name, test := range map[string]struct {
		list, kubelet *PodFact
		running       bool
		want          Comparison
	}{
		"both":                 {&plain, &plain, true, Comparison{Shared: 1, Wanted: 1, Listed: 1}},
		"only kubelet":         {nil, &plain, true, Comparison{Wanted: 1, Missing: 1}},
		"only kubelet, static": {nil, new(fact(func(f *PodFact) { f.Static = true })), true, Comparison{}},
		"static and its mirror": {new(fact(func(f *PodFact) { f.Mirror = true })), new(fact(func(f *PodFact) {
			f.Static = true
		})), true, Comparison{}},
		"kubelet forgot its source": {new(fact(func(f *PodFact) {
			f.Mirror = true
		})), &plain, true, Comparison{Wanted: 1}},
		"only the mirror": {new(fact(func(f *PodFact) { f.Mirror = true })), nil, true, Comparison{}},
		"just bound": {new(fact(func(f *PodFact) {
			f.Phase = "Pending"
		})), nil, false, Comparison{Listed: 1, Lacked: 1}},
		"runs": {&plain, nil, true,
			Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"kubelet has said so": {new(fact(func(f *PodFact) {
			f.Started = true
		})), nil, false, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"has ended": {new(fact(func(f *PodFact) {
			f.Phase, f.Started = "Succeeded", true
		})), nil, false, Comparison{}},
		"has failed": {new(fact(func(f *PodFact) { f.Phase = "Failed" })), nil, false, Comparison{}},
		"has failed, and runs": {new(fact(func(f *PodFact) {
			f.Phase = "Failed"
		})), nil, true, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"calls itself static": {new(fact(func(f *PodFact) {
			f.Static = true
		})), nil, true, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
	} {
		book := func(f *PodFact) map[string]PodFact {
			if f == nil {
				return nil
			}
			return map[string]PodFact{"x": *f}
		}
		if diff := cmp.Diff(test.want, compare(book(test.list), book(test.kubelet),
			map[string]bool{"x": test.running})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
