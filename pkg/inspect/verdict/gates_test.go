package verdict

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Each gate is closed by its own cause only; gates that need the same witness close together. While any of them is
// closed, there are no leftovers.
func TestEachGateCloses(t *testing.T) {
	broken := errors.New("broken")
	needList := "apiserver-heard list-is-ours kubelet-sources node-identity"
	tests := []struct {
		name string
		bend func(*witness.Inventory, *object.Settings)
		want string // the closed gates
		why  string // part of the first one's reason
	}{
		{"none", func(*witness.Inventory, *object.Settings) {}, "", ""},
		{"kubelet unheard", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Err = broken
		}, "kubelet-heard kubelet-sources", "broken"},
		{"kubelet unasked", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Asked = false
		}, "kubelet-heard kubelet-sources", "not asked"},
		{"kubelet young", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Age = 9 * time.Minute
		}, "kubelet-uptime", "9m0s of 10m0s"},
		{"kubelet of unknown age", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.AgeErr = broken
		}, "kubelet-uptime", "broken"},
		{"kubelet works", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Working = 1
		}, "kubelet-not-working", "still terminating 1 pods"},
		{"kubelet's work unknown", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.WorkingErr = broken
		}, "kubelet-not-working", "broken"},
		{"kubelet does not count yet", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = witness.ErrNoMetric, "v1.30.1"
		}, "kubelet-not-working", "has not received all its sources"},
		{"runtime unheard", func(t *witness.Inventory, _ *object.Settings) {
			t.Runtime.Err = broken
		}, "runtime-heard runtime-ready network-ready", "broken"},
		{"containerd unheard", func(t *witness.Inventory, _ *object.Settings) {
			t.Containerd.Err = broken
		}, "runtime-heard", "containerd's lists: broken"},
		{"containerd unasked", func(t *witness.Inventory, _ *object.Settings) {
			t.Containerd.Asked = false
		}, "runtime-heard", "not asked"},
		{"another runtime", func(t *witness.Inventory, _ *object.Settings) {
			t.Containerd = witness.ContainerdInventory{Other: "cri-o"}
		}, "", ""},
		{"runtime young", func(t *witness.Inventory, _ *object.Settings) {
			t.Runtime.Age = 4 * time.Minute
		}, "runtime-uptime", "4m0s of 5m0s"},
		{"runtime of unknown age", func(t *witness.Inventory, _ *object.Settings) {
			t.Runtime.AgeErr = broken
		}, "runtime-uptime", "broken"},
		{"runtime not ready", func(t *witness.Inventory, _ *object.Settings) { t.Runtime.Ready.OK = false },
			"runtime-ready", ""},
		{"network not ready", func(t *witness.Inventory, _ *object.Settings) { t.Runtime.NetReady.OK = false },
			"network-ready", ""},
		{"other namespaces", func(_ *witness.Inventory, s *object.Settings) {
			s.HostNamespaces = false
		}, "host-namespaces", "does not see"},
		{"mass orphaning", func(_ *witness.Inventory, s *object.Settings) { s.MassOrphaning = 0 }, "no-mass-orphaning",
			"1 of 2 pods"},
		{"apiserver unheard", func(t *witness.Inventory, _ *object.Settings) { t.Cluster.Err = broken }, needList,
			"broken"},
		{"apiserver unasked", func(t *witness.Inventory, _ *object.Settings) { t.Cluster.Asked = false }, needList,
			"not asked"},
		{"nothing shared", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Shared = 0
		}, "list-is-ours", "none of kubelet's pods is in the list"},
		{"nothing shared but the agent's own pod", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Shared, t.Own = 0, living
		}, "", ""},
		{"the agent's own pod is a mirror", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Shared, t.Own = 0, living
			t.Cluster.Pods = map[string]witness.PodFact{living: {Pod: object.Pod{UID: living}, Mirror: true}}
		}, "list-is-ours", "none of kubelet's pods"},
		{"the agent's own pod is unlisted", func(t *witness.Inventory, _ *object.Settings) {
			t.Own = other
		}, "list-is-ours", "lacks the agent's own pod"},
		{"the agent's own pod is unknown", func(t *witness.Inventory, _ *object.Settings) {
			t.Own = witness.UnknownPod
		}, "list-is-ours", "lacks the agent's own pod"},
		{"pods of other nodes", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.OnOtherNodes = []string{"a", "b", "c", "d"}
		}, "list-is-ours", "a, b, c and 1 more"},
		{"an old list", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 50, 11
		}, "list-is-ours", "lacks 11 of 50"},
		{"a list of a moment ago", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 50, 10
		}, "", ""},
		{"kubelet lacks the agent's own pod", func(t *witness.Inventory, _ *object.Settings) {
			t.Own = other
			t.Cluster.Pods[other] = inspecttest.Pod(other, "nodeagent")
		}, "kubelet-sources", "lacks the agent's own pod"},
		{"kubelet's second answer lacks the agent's own pod", func(t *witness.Inventory, _ *object.Settings) {
			t.Own, t.Kubelet.Again = living, map[string]witness.PodFact{}
		}, "kubelet-sources", "lacks the agent's own pod"},
		{"kubelet's second answer has the agent's own pod", func(t *witness.Inventory, _ *object.Settings) {
			t.Own, t.Kubelet.Again = living, t.Kubelet.Pods
		}, "", ""},
		{"kubelet lacks what it has known", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Listed, t.Cluster.Lacked, t.Cluster.Proven = 10, 1, []string{"default/web"}
		}, "kubelet-sources", "that it has known before: default/web"},
		{"kubelet lacks most", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Listed, t.Cluster.Lacked = 5, 3
		}, "kubelet-sources", "lacks 3 of 5"},
		{"kubelet lacks the one that was just bound", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Listed, t.Cluster.Lacked = 2, 1
		}, "", ""},
		{"kubelet has static pods only, others run", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Pods = map[string]witness.PodFact{static: {Pod: object.Pod{UID: static}, Static: true}}
			t.Runtime.Running = map[string]bool{other: true, static: true}
		}, "kubelet-sources", "no pod from the apiserver, while these are running: " + other},
		{"kubelet has static pods only, and they run", func(t *witness.Inventory, _ *object.Settings) {
			t.Kubelet.Pods = map[string]witness.PodFact{static: {Pod: object.Pod{UID: static}, Static: true}}
			t.Runtime.Running = map[string]bool{static: true, strings.Repeat("7", 32): true, dead: true}
			t.Runtime.Pods[dead] = witness.SandboxFact{Source: "file"}
		}, "", ""},
		{"another machine", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Machine = "x"
		}, "node-identity", `machineID "x"`},
		{"another boot", func(t *witness.Inventory, _ *object.Settings) { t.Cluster.Boot = "x" }, "node-identity", `bootID "x"`},
		{"no boot", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.Boot, t.Cluster.LocalBoot = "", ""
		}, "node-identity", `bootID ""`},
		{"node unheard", func(t *witness.Inventory, _ *object.Settings) { t.Cluster.NodeErr = broken }, "node-identity",
			"broken"},
		{"this machine unknown", func(t *witness.Inventory, _ *object.Settings) {
			t.Cluster.LocalErr = broken
		}, "node-identity", "broken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, s := inspecttest.Healthy(), inspecttest.Settings()
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
			o := inspecttest.Object(object.Netns, "66666666-6666-4666-8666-666666666666")
			report, _ := Evaluate([]object.Object{o}, inventory, seenLong(o), s, inspecttest.Hour)
			if got := report.Objects[0]; (got.Verdict == object.Leftover) != (test.want == "") {
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
		})
	}
}

func TestPodMissingFromTheListClosesTheGate(t *testing.T) {
	inventory := inspecttest.Healthy()
	g := listIsOurs(&inventory, inspecttest.Settings(), 1, []string{"default/web"})
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
		inventory := inspecttest.Healthy()
		inventory.Kubelet.Pods, inventory.Cluster.Pods = map[string]witness.PodFact{}, map[string]witness.PodFact{}
		for n := range test.known {
			inventory.Kubelet.Pods[inspecttest.UIDOf(n)] = witness.PodFact{Pod: object.Pod{UID: inspecttest.UIDOf(n)}}
			inventory.Cluster.Pods[inspecttest.UIDOf(n)] = witness.PodFact{Pod: object.Pod{UID: inspecttest.UIDOf(n)}} // the same pod, not another one
		}
		if g := noMassOrphaning(&inventory, inspecttest.Settings(), test.orphans); g.Open != test.open {
			t.Errorf("%d of %d known: %+v", test.orphans, test.known, g)
		}
	}
}

// On a busy node, the sandboxes of many pods wait for kubelet's garbage collector. They close no gate; existing objects
// of a pod that a wrong witness denies do.
func TestEndedSandboxesAreNoMassOrphaning(t *testing.T) {
	leftover := inspecttest.Object(object.PodDirectory, dead)
	leftover.ID = dead
	for name, test := range map[string]struct {
		state       string
		more        object.Kind
		removed     bool // since they were listed
		directories int  // of the three pods that kubelet has
		want        object.Verdict
	}{
		"ended":                       {"NOTREADY", "", false, 3, object.Leftover},
		"most directories are seen":   {"NOTREADY", "", false, 2, object.Leftover},
		"few directories are seen":    {"NOTREADY", "", false, 1, object.Candidate},
		"no directories are seen":     {"NOTREADY", "", false, 0, object.Candidate},
		"their logs are there too":    {"NOTREADY", object.PodLogs, false, 3, object.Leftover},
		"they run":                    {"READY", "", false, 3, object.Candidate},
		"a container runs":            {"NOTREADY", object.Container, false, 3, object.Candidate},
		"their directories are there": {"NOTREADY", object.PodDirectory, false, 3, object.Candidate},
		"their cgroups are there":     {"NOTREADY", object.Cgroup, false, 3, object.Candidate},
		"they have been removed":      {"READY", object.PodDirectory, true, 3, object.Leftover},
		"removed, from elsewhere":     {"READY", object.PodDirectory, true, 0, object.Candidate},
	} {
		t.Run(name, func(t *testing.T) {
			objects, inventory := []object.Object{leftover}, inspecttest.Healthy()
			inventory.Removed = make(map[string]bool)
			delete(inventory.Kubelet.Pods, living)
			for n := range 3 {
				inventory.Kubelet.Pods[inspecttest.UIDOf(100+n)] = inspecttest.Pod(inspecttest.UIDOf(100+n), "web")
				if o := inspecttest.Object(object.PodDirectory, inspecttest.UIDOf(100+n)); n < test.directories {
					o.ID = o.Pod.UID
					objects = append(objects, o)
				}
			}
			for n := range 10 {
				inventory.Removed[inspecttest.UIDOf(n)] = test.removed
				for kind, state := range map[object.Kind]string{object.Sandbox: test.state, test.more: "RUNNING"} {
					o := inspecttest.Object(kind, inspecttest.UIDOf(n))
					o.ID, o.Facts = o.Pod.UID, object.Facts("state", state)
					if kind != "" {
						objects = append(objects, o)
					}
				}
			}
			report, _ := Evaluate(objects, inventory, seenLong(objects...), inspecttest.Settings(),
				inspecttest.Hour)
			for _, o := range report.Objects {
				if o.Pod.UID == dead && o.Verdict != test.want {
					t.Errorf("%s: %s", o.Verdict, o.Why)
				}
			}
		})
	}
}
