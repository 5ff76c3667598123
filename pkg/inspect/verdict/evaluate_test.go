package verdict

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

const (
	living      = inspecttest.Living
	dead        = inspecttest.Dead
	other       = inspecttest.Other
	static      = inspecttest.Static
	sandbox     = inspecttest.Sandbox
	deadSandbox = inspecttest.DeadSandbox
	newSandbox  = inspecttest.NewSandbox
)

func TestEvaluateRules(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name   string
		object object.Object
		bend   func(*witness.Inventory, object.History, *object.Settings)
		want   object.Verdict
		why    string // part of it
	}{
		{"all deny", inspecttest.Object(object.PodDirectory, dead), nil, object.Leftover, "seen in 6 passes over 20m0s"},
		{"every kind: sandbox", inspecttest.Object(object.Sandbox, dead), nil, object.Leftover, ""},
		{"every kind: container", inspecttest.Object(object.Container, dead), nil, object.Leftover, ""},
		{"every kind: process", inspecttest.Object(object.Process, dead), nil, object.Leftover, ""},
		{"every kind: attachment", inspecttest.Object(object.CNIAttachment, dead), nil, object.Leftover, ""},
		{"every kind: netns", inspecttest.Object(object.Netns, dead), nil, object.Leftover, ""},
		{"every kind: link", inspecttest.Object(object.Link, dead), nil, object.Leftover, ""},
		{"every kind: mount", inspecttest.Object(object.Mount, dead), nil, object.Leftover, ""},
		{"every kind: cgroup", inspecttest.Object(object.Cgroup, dead), nil, object.Leftover, ""},

		{"kubelet knows", inspecttest.Object(object.Cgroup, living), nil, object.Live, "kubelet has its pod"},
		{"only the apiserver knows, in a final phase", inspecttest.Object(object.PodDirectory, dead),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Cluster.Pods[dead] = witness.PodFact{Pod: object.Pod{UID: dead}, Phase: "Succeeded"}
			}, object.Live, "the apiserver has its pod"},
		{"an old attempt of a living pod", inspecttest.Object(object.Sandbox, living), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.Sandboxes[sandbox] = witness.SandboxFact{ID: sandbox, State: "NOTREADY"}
		}, object.Live, "kubelet has its pod"},
		{"no pod", inspecttest.Object(object.Netns, ""), nil, object.Unowned, "nothing on the node names the pod"},
		{"doubt", func() object.Object {
			o := inspecttest.Object(object.Netns, dead)
			o.Doubt = "who lives there"
			return o
		}(), nil, object.Unknown, "who lives there"},
		{"foreign", func() object.Object {
			o := inspecttest.Object(object.Netns, dead)
			o.Foreign = "created by hand"
			return o
		}(), nil, object.Foreign, "created by hand"},

		{"its sandbox is a leftover: that the runtime knows it changes nothing", inspecttest.Object(object.Sandbox, dead),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Runtime.Sandboxes[sandbox] = witness.SandboxFact{ID: sandbox, State: "READY"}
			}, object.Leftover, ""},
		{"network of a sandbox that the runtime knows", inspecttest.Object(object.Netns, dead),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Runtime.Sandboxes[sandbox] = witness.SandboxFact{ID: sandbox, State: "NOTREADY"}
			}, object.Candidate, "runtime still knows its sandbox"},
		{"network of a sandbox with a lease only: it is starting", inspecttest.Object(object.CNIAttachment, dead),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Containerd.Known[sandbox] = "lease"
			}, object.Candidate, "containerd still knows its sandbox"},
		{"cri-o: containerd is no witness", inspecttest.Object(object.Link, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Containerd = witness.ContainerdInventory{Other: "cri-o"}
		}, object.Leftover, ""},

		{"kubelet does not answer", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Kubelet.Err = broken
			t.Kubelet.Pods = nil
		}, object.Unknown, "kubelet could not be heard: broken"},
		{"kubelet does not answer, but the apiserver knows", inspecttest.Object(object.Mount, living),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Kubelet.Err = broken
				t.Kubelet.Pods = nil
			}, object.Live, ""},
		{"runtime does not answer", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Runtime.Err = broken
		}, object.Unknown, "gate runtime-heard"},
		{"containerd does not answer", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Containerd.Err = broken
		}, object.Unknown, "gate runtime-heard"},
		{"apiserver does not answer", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Cluster = witness.ClusterInventory{Response: witness.Response{Asked: true, Err: broken}}
		}, object.Unknown, "gate apiserver-heard"},
		{"apiserver not asked", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster = witness.ClusterInventory{}
		}, object.Unknown, "gate apiserver-heard"},
		{"empty list", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.Pods, t.Cluster.Shared, t.Cluster.Missing = map[string]witness.PodFact{}, 0, 1
		}, object.Unknown, "gate list-is-ours is closed: none of kubelet's pods"},
		{"empty list, and kubelet has none either", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.Pods, t.Cluster.Pods, t.Cluster.Shared, t.Cluster.Wanted = nil, nil, 0, 0
		}, object.Unknown, "gate list-is-ours"},
		{"own pod is not in the list", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Own = other
		}, object.Unknown, "lacks the agent's own pod"},
		{"own pod is in the list", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Own = living
		}, object.Leftover, ""},
		{"list of another node", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.OnOtherNodes = []string{`a/b on "m"`}
		}, object.Unknown, "pods of other nodes"},
		{"old list", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.Wanted, t.Cluster.Missing = 10, 4
		}, object.Unknown, "lacks 4 of 10"},
		{"no answer about the node object", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Cluster.NodeErr = broken
		}, object.Unknown, "gate node-identity"},
		{"node of another machine", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.Machine = "x"
		}, object.Unknown, `machineID "x"`},
		{"node of another boot", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.Boot = "x"
		}, object.Unknown, `bootID "x"`},
		{"boot ID unreadable", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Cluster.Boot, t.Cluster.LocalBoot = "", ""
		}, object.Unknown, "gate node-identity"},
		{"host namespaces", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, _ object.History,
			s *object.Settings) {
			s.HostNamespaces = false
		}, object.Unknown, "gate host-namespaces"},

		{"kubelet just started", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Kubelet.Age = time.Minute
		}, object.Candidate, "kubelet has been up for 1m0s of 10m0s"},
		{"kubelet's process not found", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.AgeErr = broken
		}, object.Unknown, "gate kubelet-uptime"},
		{"runtime just started", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Runtime.Age = time.Minute
		}, object.Candidate, "gate runtime-uptime"},
		{"runtime not ready", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, _ object.History,
			_ *object.Settings) {
			t.Runtime.Ready.OK = false
		}, object.Candidate, "gate runtime-ready"},
		{"network not ready, network object", inspecttest.Object(object.Netns, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.NetReady.OK = false
		}, object.Candidate, "gate network-ready"},
		{"network not ready, other object", inspecttest.Object(object.Cgroup, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.NetReady.OK = false
		}, object.Leftover, ""},
		{"kubelet works on orphans", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.Working = 1
		}, object.Candidate, "still terminating 1 pods"},
		{"kubelet has worked on it for twice the grace period", inspecttest.Object(object.Mount, dead),
			func(t *witness.Inventory, h object.History, s *object.Settings) {
				t.Kubelet.Working = 1
				for k, sighting := range h {
					sighting.First.SinceBoot -= 3 * s.Grace
					h[k] = sighting
				}
			}, object.Leftover, ""},
		{"kubelet works on more pods than that", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			h object.History, s *object.Settings) {
			t.Kubelet.Working = 2
			for k, sighting := range h {
				sighting.First.SinceBoot -= 3 * s.Grace
				h[k] = sighting
			}
		}, object.Candidate, "still terminating 2 pods"},
		{"kubelet does not count, nobody knows why", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr = witness.ErrNoMetric
		}, object.Unknown, "its version is not known"},
		{"kubelet does not count yet", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = witness.ErrNoMetric, "v1.27.0"
		}, object.Unknown, "its version is v1.27.0, so it has not received all its sources of pods yet"},
		{"kubelet does not count yet, says its Node", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Cluster.Version = witness.ErrNoMetric, "v1.36.3-eks-1234567"
		}, object.Unknown, "version is v1.36.3-eks-1234567"},
		{"kubelet was updated, and its Node is of before", inspecttest.Object(object.Mount, dead),
			func(t *witness.Inventory, _ object.History, _ *object.Settings) {
				t.Kubelet.WorkingErr, t.Kubelet.Version, t.Cluster.Version = witness.ErrNoMetric, "v1.27.1+k3s1", "v1.26.9"
			}, object.Unknown, "version is v1.27.1+k3s1"},
		{"kubelet's version is no version", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version = witness.ErrNoMetric, "unknown"
		}, object.Unknown, "cannot be parsed"},
		{"kubelet has never counted", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Kubelet.Version, t.Cluster.Version = witness.ErrNoMetric, "v1.26.15", "v1.26.15"
		}, object.Leftover, ""},
		{"kubelet has never counted, says its Node", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr, t.Cluster.Version = witness.ErrNoMetric, "v1.26.0"
		}, object.Leftover, ""},
		{"kubelet's count is missing", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Kubelet.WorkingErr = broken
		}, object.Unknown, "gate kubelet-not-working"},

		{"never seen before", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, h object.History,
			_ *object.Settings) {
			clear(h)
		}, object.Candidate,
			"seen in 1 of 3 passes; 10m0s of 10m0s remaining; the apiserver must deny it twice, at least 30s apart"},
		{"another object by that name", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory,
			h object.History, _ *object.Settings) {
			h["mount/x"] = object.Sighting{Identity: object.Identity{File: object.FileID{Inode: 8}}, First: inspecttest.At(time.Minute),
				Last:   inspecttest.At(2 * time.Minute),
				Passes: 9}
		}, object.Candidate, "seen in 1 of 3"},
		{"seen in an earlier boot", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, h object.History,
			_ *object.Settings) {
			s := h["mount/x"]
			s.First.Boot = "boot-0"
			h["mount/x"] = s
		}, object.Candidate, "seen in 1 of 3"},
		{"seen too few times", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, h object.History,
			_ *object.Settings) {
			s := h["mount/x"]
			s.Passes = 1
			h["mount/x"] = s
		}, object.Candidate, "not yet proven: seen in 2 of 3 passes"},
		{"seen too short", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, h object.History,
			_ *object.Settings) {
			s := h["mount/x"]
			s.First, s.Denials = inspecttest.At(59*time.Minute-30*time.Second),
				[]finding.Timestamp{inspecttest.At(59 * time.Minute)}
			h["mount/x"] = s
		}, object.Candidate, "not yet proven: 8m30s of 10m0s remaining"},
		{"denied once", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory, h object.History,
			_ *object.Settings) {
			s := h["mount/x"]
			s.Denials = nil
			h["mount/x"] = s
		}, object.Candidate, "not yet proven: the apiserver must deny it twice, at least 30s apart"},
		{"the list is older than the first sighting", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			h object.History, s *object.Settings) {
			clear(h)
			t.Cluster.At = inspecttest.At(59 * time.Minute)
			*s = object.Settings{HostNamespaces: true, MassOrphaning: 3}
		}, object.Candidate, "the apiserver was not asked: since it was first seen"},
		{"its containers have an hour to end", inspecttest.Object(object.Mount, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.Grace[dead] = time.Hour
		}, object.Candidate, "40m0s of 1h0m0s remaining"},
		{"settings of zero", inspecttest.Object(object.Mount, dead), func(_ *witness.Inventory, h object.History,
			s *object.Settings) {
			clear(h)
			*s = object.Settings{HostNamespaces: true, MassOrphaning: 3}
		}, object.Leftover, "seen in 1 passes over 0s"},

		{"static pod, all manifests have theirs", inspecttest.Object(object.Cgroup, static), nil, object.Leftover, ""},
		{"static pod, manifests not read", inspecttest.Object(object.Cgroup, static), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Static = witness.StaticPodInventory{}
		}, object.Unknown, "manifests were not read"},
		{"static pod, manifests unreadable", inspecttest.Object(object.Cgroup, static), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Static.Err = broken
		}, object.Unknown, "broken"},
		{"static pod, a manifest without pod", inspecttest.Object(object.Cgroup, static), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Static.Missing = []string{"a/b"}
		}, object.Unknown, "manifest of a/b"},
		{"static pod with its own UID", inspecttest.Object(object.Cgroup, dead), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.Pods[dead] = witness.SandboxFact{Source: "file"}
			t.Static.Missing = []string{"a/b"}
		}, object.Unknown, "manifest of a/b"},
		{"static pod from a URL", inspecttest.Object(object.Cgroup, static), func(t *witness.Inventory,
			_ object.History, _ *object.Settings) {
			t.Runtime.Pods[static] = witness.SandboxFact{Source: "http"}
		}, object.Unknown, "from http"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, history, s := inspecttest.Healthy(), seenLong(test.object), inspecttest.Settings()
			if test.bend != nil {
				test.bend(&inventory, history, &s)
			}
			report, _ := Evaluate([]object.Object{test.object}, inventory, history, s, inspecttest.Hour)
			got := report.Objects[0]
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("got %s: %s\nwant %s: … %s …\nwitnesses %v", got.Verdict, got.Why, test.want, test.why,
					got.Witnesses)
			}
		})
	}
}

func TestMassOrphaningStopsEverything(t *testing.T) {
	var objects []object.Object
	for _, digit := range "56789" {
		o := inspecttest.Object(object.PodDirectory, strings.ReplaceAll(dead, "2", string(digit)))
		o.ID = o.Pod.UID
		objects = append(objects, o)
	}
	verdicts := func(n int) map[object.Verdict]int {
		counts := make(map[object.Verdict]int)
		report, _ := Evaluate(objects[:n], inspecttest.Healthy(), seenLong(objects[:n]...),
			inspecttest.Settings(), inspecttest.Hour)
		for _, o := range report.Objects {
			counts[o.Verdict]++
		}
		return counts
	}
	if diff := cmp.Diff(map[object.Verdict]int{object.Leftover: 3}, verdicts(3)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[object.Verdict]int{object.Candidate: 4}, verdicts(4)); diff != "" {
		t.Error(diff)
	}
}

func TestGatesAreAlwaysAllThere(t *testing.T) {
	want := "kubelet-heard kubelet-uptime kubelet-not-working runtime-heard runtime-uptime runtime-ready " +
		"network-ready host-namespaces no-other-kubelet no-mass-orphaning apiserver-heard list-is-ours kubelet-sources node-identity"
	for name, inventory := range map[string]witness.Inventory{"healthy": inspecttest.Healthy(), "nothing was asked": {}} {
		report, _ := Evaluate([]object.Object{inspecttest.Object(object.Mount, living)}, inventory, nil,
			inspecttest.Settings(), inspecttest.Hour)
		var names []string
		for _, g := range report.Gates {
			names = append(names, g.Name)
			if g.Why == "" && g.Name != "runtime-ready" && g.Name != "network-ready" {
				t.Errorf("%s: gate %s does not say why", name, g.Name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestQuietNodeHasOpenGates(t *testing.T) {
	inventory := inspecttest.Healthy()
	inventory.Cluster = witness.ClusterInventory{}
	report, _ := Evaluate([]object.Object{inspecttest.Object(object.Mount, living)}, inventory, nil,
		inspecttest.Settings(), inspecttest.Hour)
	for _, g := range report.Gates {
		if !g.Open {
			t.Errorf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
}

func TestNotConfiguredKubeletIsUnknown(t *testing.T) {
	inventory := inspecttest.Healthy()
	inventory.Kubelet = witness.KubeletInventory{Response: witness.Response{Asked: true, Err: hosterr.ErrNotConfigured}}
	report, _ := Evaluate([]object.Object{inspecttest.Object(object.Mount, dead)}, inventory, nil,
		inspecttest.Settings(), inspecttest.Hour)
	if report.Objects[0].Verdict != object.Unknown {
		t.Errorf("got %s", report.Objects[0].Verdict)
	}
}
